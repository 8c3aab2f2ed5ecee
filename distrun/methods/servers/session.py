"""The worker's side of parameter servers: access to all parameters of one optimizer, on all servers."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from distrun.contract.launch import PREFIX, SERVER_COPIES, SERVER_RESTARTS, SERVERS
from distrun.contract.settings import current
from distrun.errors import UsageError
from distrun.methods.servers.clocks import needed
from distrun.methods.servers.connection import Peer, Request, ServerConnection
from distrun.methods.servers.layout import Layout, Segment, Table, shares
from distrun.methods.servers.protocol import Kind
from distrun.methods.servers.rules import Array
from distrun.runtime.operations.numbering import Numbering
from distrun.runtime.world import world

MOST_WIDTH = 1 << 16
"""The longest row of a sparse parameter."""
_numbers = Numbering()  # optimizers are identified by the order of their construction, the same on all workers


def check_staleness(staleness: float) -> float:
    """Return `staleness` if it is valid.

    Raises:
        UsageError: it is not.
    """
    is_number = isinstance(staleness, int | float) and not isinstance(staleness, bool)
    if not is_number or not staleness >= 0 or (math.isfinite(staleness) and staleness != int(staleness)):
        raise UsageError(
            f"staleness={staleness!r} is no number of steps: allowed are 0 (synchronous), 1, 2 and so on, and "
            "float('inf') (nobody waits)"
        )
    return staleness


def endpoints() -> list[str]:
    """Return the endpoints of the servers.

    Raises:
        UsageError: the job has none.
    """
    text = os.environ.get(SERVERS)
    if not text:
        raise UsageError(
            "AsyncOptimizer needs parameter servers, and this job has none: start it with distrun --servers N"
        )
    return text.split(";")


def peer_of(server: int, optimizer: int) -> Peer:
    """Return the peer for this rank's connection with a server, on behalf of an optimizer.

    Raises:
        UsageError: the job has no servers.
    """
    settings = current()
    return Peer(
        server,
        endpoints()[server],
        world.rank(),
        optimizer,
        bytes.fromhex(os.environ[PREFIX + "KEY"]),
        settings.encrypt,
        settings.keepalive,
        settings.start_timeout,
        os.environ.get(SERVER_RESTARTS, "0") != "0",
        bool(os.environ.get(SERVER_COPIES)),
    )


class Session:
    """Pushes the gradients of one optimizer to the servers, and pulls its parameters."""

    def __init__(self, layout: Layout) -> None:
        """Connect with all servers. The parameters have no values before `start`.

        Args:
            layout: the parameters and rules, the same on all workers.

        Raises:
            UsageError: the job has no servers.
        """
        self.layout = layout
        ends = endpoints()
        self._shares = shares(layout, len(ends))
        order = layout.flat_order()
        sizes = [layout.parameters[index].size for index in order]
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._places = {index: (int(starts[at]), int(starts[at + 1])) for at, index in enumerate(order)}
        self.values: Array = np.zeros(int(starts[-1]), np.float32)
        """The dense parameters as last pulled from the servers. `value_of` returns views of it."""
        # Two buffers, so that one can be written while the other is still being sent.
        self._gradients = [np.zeros_like(self.values), np.zeros_like(self.values)]
        self._turn = 0
        self.clock = 0
        """The number of steps whose gradients have been pushed."""
        self._under_way: list[Future[int]] = []
        number, text = _numbers.next(), layout.to_json()
        self._connections = [ServerConnection(peer_of(server, number), text) for server in range(len(ends))]
        self.is_open = True
        """Whether this worker has not left yet."""
        self._pid = os.getpid()
        world.on_leaving(self.close)

    # Dense parameters -------------------------------------------------------------------------------------------------

    def value_of(self, parameter: int) -> Array:
        """Return a dense parameter's view of `values`, in its shape."""
        start, stop = self._places[parameter]
        return self.values[start:stop].reshape(self.layout.parameters[parameter].shape)

    def gradient_of(self, parameter: int) -> Array:
        """Return the array for a dense parameter's gradient in the next `push`, in its shape."""
        start, stop = self._places[parameter]
        return self._gradients[self._turn][start:stop].reshape(self.layout.parameters[parameter].shape)

    def push(
        self,
        rates: Sequence[float],
        present: Sequence[bool],
        sparse: Mapping[int, tuple[NDArray[np.int64], Array]],
        staleness: float,
        ahead: int,
    ) -> None:
        """Start to push the gradients of a step and to pull new values. `await_values` waits for the values.

        Args:
            rates: the learning rate of each group.
            present: whether each parameter has a gradient, in the array of `gradient_of` or in `sparse`.
            sparse: for each sparse parameter with a gradient, its rows, without repetitions, and their gradients, of
                shape (rows, width).
            staleness: see `clocks`.
            ahead: the number of steps that are computed before the one that uses these values.
        """
        gradients = self._gradients[self._turn]
        self._turn = 1 - self._turn
        step, self.clock = self.clock, self.clock + 1
        lowest = needed(self.clock + ahead, staleness)
        for server, (share, connection) in enumerate(zip(self._shares, self._connections, strict=True)):
            has = np.array([present[segment.parameter] for segment in share.segments], np.uint8)
            tables = [_own_rows(sparse.get(table.parameter), server, len(self._shares), table.width)
                      for table in share.tables]  # fmt: skip
            counts = np.array([indices.size for indices, _ in tables], np.int64)
            part = slice(share.start, share.start + share.dense_size)
            parts = [np.array(rates, np.float64), has, counts, gradients[part]]
            parts += [array for pair in tables for array in pair]
            request = Request(Kind.PUSH, step, lowest, parts, [self.values[part]])
            self._under_way.append(connection.ask(request))

    def await_values(self) -> bool:
        """Wait until `values` has the result of the last `push`. Return whether there was one.

        Raises:
            JobAbortedError: a server is gone.
        """
        under_way, self._under_way = self._under_way, []
        _await(under_way)
        return bool(under_way)

    def pull(self, staleness: float) -> None:
        """Wait for the newest values of the dense parameters."""
        self.await_values()
        lowest = needed(self.clock, staleness)
        _await(
            connection.ask(Request(Kind.PULL, needed=lowest, answer=[self._part(server)]))
            for server, connection in enumerate(self._connections)
        )

    # Sparse parameters ------------------------------------------------------------------------------------------------

    def rows(self, parameter: int, indices: NDArray[np.int64], staleness: float) -> Array:
        """Return the newest values of some rows of a sparse parameter, without repetitions, of shape (rows, width)."""
        table = self.layout.tables().index(parameter)
        count = len(self._shares)
        found = np.empty((indices.size, self._shares[0].tables[table].width), np.float32)
        asked = []
        for server, connection in enumerate(self._connections):
            which = np.flatnonzero(indices % count == server)
            if which.size:
                own = np.empty((which.size, found.shape[1]), np.float32)
                request = Request(Kind.ROWS, table, needed(self.clock, staleness), [indices[which] // count], [own])
                asked.append((which, own, connection.ask(request)))
        for which, own, done in asked:
            done.result()
            found[which] = own
        return found

    # The whole state --------------------------------------------------------------------------------------------------

    def start(
        self,
        values: Mapping[int, Array],
        slots: Sequence[Mapping[int, Array]] | None = None,
        steps: Mapping[int, int] | None = None,
    ) -> None:
        """On one worker: give all parameters values, and the optimizer its initial state, or what `gather` has
        returned."""
        asked = []
        for server, (share, connection) in enumerate(zip(self._shares, self._connections, strict=True)):
            arrays = np.zeros((1 + self.layout.slots, share.size), np.float32)
            for array, source in zip(arrays, [values, *(slots or ())], strict=False):
                for part in share.parts:
                    if part.parameter in source:
                        target, own = self._own(server, part, array, source[part.parameter])
                        target[...] = own
            parts: list[NDArray[np.float32] | NDArray[np.int64]] = [arrays[0]]
            if slots is not None and steps is not None:
                counts = [steps.get(part.parameter, 0) for part in share.parts]
                parts = [*arrays, np.array(counts, np.int64)]
            asked.append(connection.ask(Request(Kind.SET, int(slots is not None), parts=parts)))
        _await(asked)

    def gather(self) -> tuple[dict[int, Array], list[dict[int, Array]], dict[int, int]]:
        """Return the values of all parameters, the arrays of the optimizer's state, and the numbers of updates."""
        self.await_values()
        parameters = self.layout.parameters
        rows = [{index: np.empty(item.shape, np.float32) for index, item in enumerate(parameters)}
                for _ in range(1 + self.layout.slots)]  # fmt: skip
        steps: dict[int, int] = {}
        answers = []
        for share, connection in zip(self._shares, self._connections, strict=True):
            arrays = np.empty((1 + self.layout.slots, share.size), np.float32)
            counts = np.empty(len(share.parts), np.int64)
            answers.append((arrays, counts, connection.ask(Request(Kind.GET, answer=[*arrays, counts]))))
        for server, (arrays, counts, done) in enumerate(answers):
            done.result()
            for part, count in zip(self._shares[server].parts, counts.tolist(), strict=True):
                for target, array in zip(rows, arrays, strict=True):
                    source, own = self._own(server, part, array, target[part.parameter])
                    own[...] = source
                steps[part.parameter] = max(count, steps.get(part.parameter, 0))
        return rows[0], rows[1:], steps

    def _own(self, server: int, part: Segment | Table, array: Array, whole: Array) -> tuple[Array, Array]:
        """Return matching views of a part: one into the server's share `array`, one into the full parameter `whole`."""
        if isinstance(part, Segment):
            return array[part.place : part.place + part.size], whole.reshape(-1)[part.offset : part.offset + part.size]
        place, rows, width = part.place, part.rows, part.width
        own = whole.reshape(whole.shape[0], -1)[server :: len(self._shares)]
        return array[place : place + rows * width].reshape(rows, width), own

    def _part(self, server: int) -> Array:
        share = self._shares[server]
        return self.values[share.start : share.start + share.dense_size]

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave: pending pushes are applied, and other workers no longer wait for this one. May be called twice."""
        if not self.is_open or os.getpid() != self._pid:  # a forked child has none of the threads
            return
        self.is_open = False
        has_failed = getattr(sys, "last_value", None) is not None  # in this case the launcher ends the others
        for connection in self._connections:
            if not has_failed:
                connection.ask(Request(Kind.LEAVE))
        for connection in self._connections:
            connection.close(abandon=has_failed)


def _own_rows(
    given: tuple[NDArray[np.int64], Array] | None, server: int, servers: int, width: int
) -> tuple[NDArray[np.int64], Array]:
    """Return the rows of a gradient on one server, by their index there, and their values."""
    if given is None:
        return np.empty(0, np.int64), np.empty((0, width), np.float32)
    indices, values = given
    which = np.flatnonzero(indices % servers == server)
    return indices[which] // servers, np.ascontiguousarray(values[which].reshape(which.size, width), np.float32)


def _await(under_way: Iterable[Future[int]]) -> None:
    for done in list(under_way):
        done.result()
