"""The store: one server's share of the parameters of one optimizer, which workers push to and pull from.

Each worker's thread calls its methods. One update is made at a time, while other threads read. So the values that a
worker pulls may contain a part of an update that is under way, unless the job is synchronous.
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
    """The rows, by their index on this server, without repetitions."""
    values: Array
    """Values of shape (rows, width)."""


@dataclass(frozen=True)
class Push:
    """The gradients of one step of one worker, for this server's share."""

    rates: NDArray[np.float64]
    """The learning rate of each group."""
    present: NDArray[np.bool_]
    """Whether each segment has a gradient. A table has one if it has rows."""
    dense: Array
    tables: tuple[Rows, ...]


class Store:
    """Holds the share, and the progress of each worker."""

    def __init__(self, layout: Layout, servers: int, server: int, make: Callable[[ServerShard], Block]) -> None:
        """`make` returns the memory of the share, new or from an earlier process."""
        self.layout = layout
        self.share = shares(layout, servers)[server]
        self.block = make(self.share)
        """Its state in memory: the numbers of updates and of steps, the parameters and the state of the optimizer."""
        self._changed = threading.Condition()
        self.keep: Callable[[bool], None] = lambda has_changed: None
        """Saves a copy of the share if copies are made, and if the share has changed or the argument is true."""
        self.keep_left: Callable[[], None] = lambda: None
        """Saves, beside the copy, which workers have left, if copies are made."""
        # The gradients so far of a synchronous step that is not complete yet.
        self._arrived: dict[int, NDArray[np.float64]] = {}
        self._sums = np.zeros(self.share.dense_size if layout.is_synchronous else 0, np.float32)
        self._present = np.zeros(len(self.share.segments), np.bool_)
        self._rows: list[list[Rows]] = [[] for _ in self.share.tables]

    # The state --------------------------------------------------------------------------------------------------------

    @property
    def dense(self) -> Array:
        """The values of the dense parameters."""
        return self.block.arrays[0, : self.share.dense_size]

    def rows(self, table: int, indices: NDArray[np.int64]) -> Array:
        """Return the values of the rows `indices` of a table.

        Raises:
            MismatchError: a row does not exist.
        """
        part = self.share.tables[table]
        self._check_rows(part, indices)
        return self._view(0, part)[indices]

    def set(self, write: Callable[[NDArray[np.float32]], NDArray[np.int64] | None]) -> None:
        """Give all parameters new values, before training or from a checkpoint, and let the workers begin.

        `write` writes the values into `arrays`. It returns the numbers of steps if it has also written the state of the
        optimizer, or None to initialise that state.
        """
        with self._changed:
            steps = write(self.block.arrays)
            if steps is None:
                steps = np.zeros(len(self.share.parts), np.int64)
                for part in self.share.parts:
                    size = part.size if isinstance(part, Segment) else part.rows * part.width
                    initial = slots_of(self.layout.rules[part.group]).values()
                    for row, value in zip(self.block.arrays[1:], initial, strict=False):
                        row[part.place : part.place + size] = value
            self.block.write_counts(self.block.version, self.block.clocks, steps)
            self.block.set_ready()
            self._changed.notify_all()

    def copied(self) -> Copy | None:
        """Return a copy of the state between two updates, or None if the parameters have no values yet."""
        with self._changed:
            if not self.block.is_ready:
                return None
            self._changed.wait_for(lambda: self.block.owner == -1)
            block = self.block
            return Copy(self.layout.to_json(), block.version, block.clocks, block.steps.copy(), block.arrays.copy())

    # What workers do --------------------------------------------------------------------------------------------------

    def await_ready(self) -> None:
        """Wait until the parameters have their first values."""
        with self._changed:
            self._changed.wait_for(lambda: self.block.is_ready)

    def await_clock(self, needed: int) -> None:
        """Wait until the slowest worker has pushed the gradients of `needed` steps."""
        with self._changed:
            self._changed.wait_for(lambda: self.block.is_ready and slowest(self.block.clocks) >= needed)

    def push(self, worker: int, clock: int, pushed: Push) -> None:
        """Accept the gradients of a step: apply them, or, in a synchronous job, add them to the other workers'
        gradients.

        Gradients that were accepted before, when an answer was lost, are ignored. `pushed` may be overwritten.

        Raises:
            MismatchError: a row does not exist.
        """
        for part, rows in zip(self.share.tables, pushed.tables, strict=True):
            self._check_rows(part, rows.indices)
        with self._changed:
            if clock < self.block.clocks[worker]:
                return
            if self.layout.is_synchronous:
                self._add(worker, pushed)
                self._complete(clock)
                return
            # If another update is left over from a server that has died, its worker pushes again and completes it
            # first.
            self._changed.wait_for(lambda: self.block.owner in (-1, worker))
            clocks = self.block.clocks
            clocks[worker] = clock + 1
            self._apply(worker, clock, clocks, pushed)

    def rejoin(self, worker: int, clock: int) -> None:
        """Set a worker's clock to the number of steps that it knows to be applied, since a copy may be older.

        The updates that the copy lacks are lost, and no worker may wait for them. In a synchronous job, all workers
        have pushed these steps.
        """
        with self._changed:
            clocks = self.block.clocks
            if clock <= clocks[worker]:
                return
            if self.layout.is_synchronous:
                clocks = [max(own, clock) for own in clocks]
                self._forget_arrived()
            clocks[worker] = clock
            self.block.write_counts(self.block.version, clocks, self.block.steps.copy())
            self._changed.notify_all()

    def leave(self, worker: int) -> None:
        """Record that a worker pushes no more gradients, so that no other waits for it."""
        with self._changed:
            clocks = self.block.clocks
            clocks[worker] = LEFT
            self.block.write_counts(self.block.version, clocks, self.block.steps.copy())
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
        """Apply the average if the gradients of all workers have arrived."""
        if not are_complete(self.block.clocks, frozenset(self._arrived)):
            return
        count = np.float32(len(self._arrived))
        self._sums /= count
        tables = tuple(_combined(rows, float(count)) for rows in self._rows)
        pushed = Push(self._arrived[min(self._arrived)], self._present, self._sums, tables)
        clocks = [LEFT if own == LEFT else clock + 1 for own in self.block.clocks]
        self._apply(self.layout.workers, clock, clocks, pushed)
        self._forget_arrived()

    def _forget_arrived(self) -> None:
        self._arrived.clear()
        self._sums[:] = 0
        self._present[:] = False
        self._rows = [[] for _ in self.share.tables]

    # Updates ----------------------------------------------------------------------------------------------------------

    def _apply(self, owner: int, clock: int, clocks: Sequence[int], pushed: Push) -> None:
        block = self.block
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
        """Yield (group, step number, start, stop) for runs of segments with the same group and step number."""
        parts = zip(self.share.segments, steps.tolist(), present, strict=False)
        for (group, step, is_present), run in groupby(parts, lambda item: (item[0].group, item[1], bool(item[2]))):
            segments = [segment for segment, _, _ in run]
            if is_present:
                yield group, step, segments[0].place, segments[-1].place + segments[-1].size

    def _view(self, row: int, part: Table) -> Array:
        stop = part.place + part.rows * part.width
        return self.block.arrays[row, part.place : stop].reshape(part.rows, part.width)

    def _check_rows(self, part: Table, indices: NDArray[np.int64]) -> None:
        if indices.size and not (indices.min() >= 0 and indices.max() < part.rows):
            name = self.layout.parameters[part.parameter].name
            raise MismatchError(f"a worker asked for a row of {name} that there is not")


def _row_chunks(rows: int, width: int) -> Iterator[tuple[int, int]]:
    most = max(1, CHUNK // max(1, width))
    return ((first, min(rows, first + most)) for first in range(0, rows, most))


def _combined(rows: Sequence[Rows], divisor: float) -> Rows:
    """Return the sum of several workers' gradients, divided by `divisor`, with each row once."""
    indices, inverse = np.unique(np.concatenate([own.indices for own in rows]), return_inverse=True)
    values = np.zeros((indices.size, rows[0].values.shape[1]), np.float32)
    np.add.at(values, inverse.reshape(-1), np.concatenate([own.values for own in rows]))
    return Rows(indices, values / np.float32(divisor))
