"""One server's share of the parameters of one optimizer: what workers push to it, and what they may pull.

Its methods are called by a thread for each worker. One update is made at a time, while others read: what a worker pulls
may hold a part of an update that is under way, unless the job is synchronous.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from distrun.errors import MismatchError
from distrun.methods.servers.clocks import LEFT, are_complete, slowest
from distrun.methods.servers.copies import Copy
from distrun.methods.servers.layout import Layout, Segment, ServerShard, Table, shares
from distrun.methods.servers.memory import CHUNK, Block
from distrun.methods.servers.rules import Array, applied, slots_of


@dataclass(frozen=True)
class Rows:
    """The gradient of some rows of a table, or their values."""

    indices: NDArray[np.int64]
    """The rows, as this server counts its own; each at most once."""
    values: Array
    """Values of shape (rows, width)."""


@dataclass(frozen=True)
class Push:
    """The gradients of one step of one worker, as far as they are this server's."""

    rates: NDArray[np.float64]
    """The learning rate of each group."""
    present: NDArray[np.bool_]
    """Whether there is a gradient for each segment; a table has one if it has rows."""
    dense: Array
    tables: tuple[Rows, ...]


class Store:
    """The share, and who has pushed what."""

    def __init__(self, layout: Layout, servers: int, server: int, make: Callable[[ServerShard], Block]) -> None:
        """
        Args:
            layout: what there is.
            servers, server: the number of servers, and which one this is.
            make: returns the memory of the share, new or as another process has left it.
        """
        self.layout = layout
        self.share = shares(layout, servers)[server]
        self._block = make(self.share)
        self._changed = threading.Condition()
        self.keep: Callable[[bool], None] = lambda has_changed: None
        """Makes a copy of the share, if copies are kept, and if it has changed or the caller says so."""
        self.keep_left: Callable[[], None] = lambda: None
        """Keeps in mind beside the copy which workers have left, if copies are kept."""
        # Of a synchronous step that not all workers have come to.
        self._arrived: dict[int, NDArray[np.float64]] = {}
        self._sums = np.zeros(self.share.dense_size if layout.is_synchronous else 0, np.float32)
        self._present = np.zeros(len(self.share.segments), np.bool_)
        self._rows: list[list[Rows]] = [[] for _ in self.share.tables]

    # What there is ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of updates that have been made."""
        return self._block.version

    @property
    def clocks(self) -> list[int]:
        """The number of steps whose gradients each worker has pushed."""
        return self._block.clocks

    @property
    def arrays(self) -> NDArray[np.float32]:
        """The parameters, and then the state of the optimizer, one array in each row."""
        return self._block.arrays

    @property
    def steps(self) -> NDArray[np.int64]:
        """The number of updates that each part has had."""
        return self._block.steps

    @property
    def dense(self) -> Array:
        """The values of the dense parameters."""
        return self._block.arrays[0, : self.share.dense_size]

    def rows(self, table: int, indices: NDArray[np.int64]) -> Array:
        """Return the values of some rows of a table.

        Raises:
            MismatchError: there are no such rows.
        """
        part = self.share.tables[table]
        self._check_rows(part, indices)
        return self._view(0, part)[indices]

    def set(self, write: Callable[[NDArray[np.float32]], NDArray[np.int64] | None]) -> None:
        """Give all parameters new values, before training or from a checkpoint, and let the workers begin.

        Args:
            write: writes the values into `arrays`, and returns the numbers of steps if it has also written the state of
                the optimizer; None: that is to begin again.
        """
        with self._changed:
            steps = write(self._block.arrays)
            if steps is None:
                steps = np.zeros(len(self.share.parts), np.int64)
                for part in self.share.parts:
                    size = part.size if isinstance(part, Segment) else part.rows * part.width
                    initial = slots_of(self.layout.rules[part.group]).values()
                    for row, value in zip(self._block.arrays[1:], initial, strict=False):
                        row[part.place : part.place + size] = value
            self._block.write_counts(self._block.version, self._block.clocks, steps)
            self._block.set_ready()
            self._changed.notify_all()

    def copied(self) -> Copy | None:
        """Return the state between two updates; None: the parameters have no values yet."""
        with self._changed:
            if not self._block.is_ready:
                return None
            self._changed.wait_for(lambda: self._block.owner == -1)
            block = self._block
            return Copy(self.layout.to_json(), block.version, block.clocks, block.steps.copy(), block.arrays.copy())

    # What workers do --------------------------------------------------------------------------------------------------

    def await_ready(self) -> None:
        """Wait until the parameters have their first values."""
        with self._changed:
            self._changed.wait_for(lambda: self._block.is_ready)

    def await_clock(self, needed: int) -> None:
        """Wait until the slowest worker has pushed the gradients of so many steps."""
        with self._changed:
            self._changed.wait_for(lambda: self._block.is_ready and slowest(self._block.clocks) >= needed)

    def push(self, worker: int, clock: int, pushed: Push) -> None:
        """Take the gradients of a step: apply them, or add them to those of the others.

        Args:
            worker: who pushes.
            clock: the number of the step; what has been taken before, if an answer was lost, is not taken again.
            pushed: the gradients; they may be overwritten afterwards.

        Raises:
            MismatchError: there are no such rows.
        """
        for part, rows in zip(self.share.tables, pushed.tables, strict=True):
            self._check_rows(part, rows.indices)
        with self._changed:
            if clock < self._block.clocks[worker]:
                return
            if self.layout.is_synchronous:
                self._add(worker, pushed)
                self._complete(clock)
                return
            # Another update is left over from a server that has died: its worker comes again, and completes it first.
            self._changed.wait_for(lambda: self._block.owner in (-1, worker))
            clocks = self._block.clocks
            clocks[worker] = clock + 1
            self._apply(worker, clock, clocks, pushed)

    def rejoin(self, worker: int, clock: int) -> None:
        """Note the steps whose gradients a worker knows to have been applied: a copy may be older than that.

        What it lacks is lost, and nobody may wait for it. If the job is synchronous, all have pushed those steps.
        """
        with self._changed:
            clocks = self._block.clocks
            if clock <= clocks[worker]:
                return
            if self.layout.is_synchronous:
                clocks = [max(own, clock) for own in clocks]
                self._forget_arrived()
            clocks[worker] = clock
            self._block.write_counts(self._block.version, clocks, self._block.steps.copy())
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        """Note that a worker pushes nothing more: nobody waits for it."""
        with self._changed:
            clocks = self._block.clocks
            clocks[worker] = LEFT
            self._block.write_counts(self._block.version, clocks, self._block.steps.copy())
            if self.layout.is_synchronous and self._arrived:
                self._complete(clocks[min(self._arrived)])
            self._changed.notify_all()

    # Synchronous steps ------------------------------------------------------------------------------------------------

    def _add(self, worker: int, pushed: Push) -> None:
        if worker in self._arrived:
            return
        self._arrived[worker] = pushed.rates.copy()
        self._sums += pushed.dense
        self._present |= pushed.present
        for rows, own in zip(self._rows, pushed.tables, strict=True):
            rows.append(Rows(own.indices.copy(), own.values.copy()))

    def _complete(self, clock: int) -> None:
        """Apply the average, if all have come."""
        if not are_complete(self._block.clocks, frozenset(self._arrived)):
            return
        count = np.float32(len(self._arrived))
        self._sums /= count
        tables = tuple(_combined(rows, float(count)) for rows in self._rows)
        pushed = Push(self._arrived[min(self._arrived)], self._present, self._sums, tables)
        clocks = [LEFT if own == LEFT else clock + 1 for own in self._block.clocks]
        self._apply(self.layout.workers, clock, clocks, pushed)
        self._forget_arrived()

    def _forget_arrived(self) -> None:
        self._arrived.clear()
        self._sums[:] = 0
        self._present[:] = False
        self._rows = [[] for _ in self.share.tables]

    # Updates ----------------------------------------------------------------------------------------------------------

    def _apply(self, owner: int, clock: int, clocks: Sequence[int], pushed: Push) -> None:
        block = self._block
        done = block.begin(owner, clock)
        present = [*pushed.present, *(rows.indices.size > 0 for rows in pushed.tables)]
        steps = block.steps + np.array(present, np.int64)
        number = -1
        for group, step, start, stop in self._runs(present, steps):
            for place in range(start, stop, CHUNK):
                number += 1
                if number >= done:
                    end = min(stop, place + CHUNK)
                    chunk = block.arrays[:, place:end]
                    rate = float(pushed.rates[group])
                    block.write_chunk(number, place, self._updated(group, rate, step, chunk, pushed.dense[place:end]))
        for index, (part, rows) in enumerate(zip(self.share.tables, pushed.tables, strict=True)):
            step = int(steps[len(self.share.segments) + index])
            for first, last in _row_chunks(rows.indices.size, part.width):
                number += 1
                if number >= done:
                    indices = rows.indices[first:last]
                    chunk = np.stack([self._view(row, part)[indices] for row in range(len(block.arrays))])
                    rate = float(pushed.rates[part.group])
                    results = self._updated(part.group, rate, step, chunk, rows.values[first:last])
                    block.write_rows(number, part.place, indices, results)
        block.finish(block.version + 1, clocks, steps)
        self._changed.notify_all()

    def _updated(self, group: int, rate: float, step: int, arrays: Array, gradient: Array) -> tuple[Array, ...]:
        rule = self.layout.rules[group]
        return applied(rule, rate, step, arrays[0], gradient, list(arrays[1 : 1 + len(slots_of(rule))]))

    def _runs(self, present: Sequence[bool], steps: NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
        """Yield the group, the number of the step, the begin and the end of segments that are updated alike."""
        parts = zip(self.share.segments, steps.tolist(), present, strict=False)
        for (group, step, is_present), run in groupby(parts, lambda item: (item[0].group, item[1], bool(item[2]))):
            segments = [segment for segment, _, _ in run]
            if is_present:
                yield group, step, segments[0].place, segments[-1].place + segments[-1].size

    def _view(self, row: int, part: Table) -> Array:
        stop = part.place + part.rows * part.width
        return self._block.arrays[row, part.place : stop].reshape(part.rows, part.width)

    def _check_rows(self, part: Table, indices: NDArray[np.int64]) -> None:
        if indices.size and not (indices.min() >= 0 and indices.max() < part.rows):
            name = self.layout.parameters[part.parameter].name
            raise MismatchError(f"a worker asked for a row of {name} that there is not")


def _row_chunks(rows: int, width: int) -> Iterator[tuple[int, int]]:
    most = max(1, CHUNK // max(1, width))
    return ((first, min(rows, first + most)) for first in range(0, rows, most))


def _combined(rows: Sequence[Rows], divisor: float) -> Rows:
    """Return the sum of the gradients of several workers, divided."""
    indices, inverse = np.unique(np.concatenate([own.indices for own in rows]), return_inverse=True)
    values = np.zeros((indices.size, rows[0].values.shape[1]), np.float32)
    np.add.at(values, inverse.reshape(-1), np.concatenate([own.values for own in rows]))
    return Rows(indices, values / np.float32(divisor))
