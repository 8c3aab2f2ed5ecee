"""The coordinator: with parameter servers, one rank may schedule functions on all others, the workers."""

from __future__ import annotations

import pickle
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from distrun.errors import JobAbortedError, RemoteError, UsageError
from distrun.methods.servers.connection import dialed, expected
from distrun.methods.servers.protocol import CALLS, Kind, receive_text, send
from distrun.methods.servers.session import peer_of
from distrun.runtime.world import world


class Result:
    """The result of a scheduled function, once it has returned."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._outcome: tuple[bool, Any] | None = None

    def fetch(self) -> Any:
        """Wait for the function, and return its result.

        Raises:
            RemoteError: the function raised an error.
        """
        while self._outcome is None:
            self._coordinator._take_result()
        succeeded, value = self._outcome
        if not succeeded:
            raise RemoteError(value)
        return value


class Coordinator:
    """Schedules functions, by name, on any free worker, as TensorFlow's `ClusterCoordinator` does.

        coordinator = distrun.Coordinator({"train": train})  # on all ranks
        if distrun.rank() == 0:
            results = [coordinator.schedule("train", batch) for batch in range(100)]
            coordinator.join()
            coordinator.end()
        else:
            coordinator.work()

    Rank 0 is the coordinator. Functions that train use an `AsyncOptimizer` with staleness infinity, made on all ranks.
    The coordinator pushes no gradients, and calls `synchronize()` to get the newest parameters. Calls are queued on
    server 0. They are lost if it fails, even if it is restarted, and the job ends.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """
        Args:
            functions: the functions that may be scheduled, by name, the same on all ranks.

        Raises:
            UsageError: the job has no servers, or no rank besides the coordinator.
        """
        if world.size() < 2:
            raise UsageError(
                "a Coordinator needs workers besides rank 0, and this job has one rank: give -np 2 or more"
            )
        self._functions = dict(functions)
        peer = peer_of(0, CALLS)
        self._connection: socket.socket = dialed(peer, time.monotonic() + peer.start_timeout)
        self._results: dict[int, Result] = {}
        self._scheduled = 0
        self._error: str | None = None
        world.on_leaving(self._connection.close)

    def schedule(self, name: str, *args: Any, **kwargs: Any) -> Result:
        """Schedule a call of the function `name` on any worker. Return at once.

        Args:
            name: the name of the function.
            args, kwargs: its arguments, which are pickled.

        Raises:
            UsageError: there is no function of this name, or this rank is not the coordinator.
        """
        self._check(name)
        number, self._scheduled = self._scheduled, self._scheduled + 1
        result = self._results[number] = Result(self)
        self._ask(Kind.SCHEDULE, number, pickle.dumps((name, args, kwargs)))
        return result

    def join(self) -> None:
        """Wait for all scheduled functions.

        Raises:
            RemoteError: one of them raised an error.
        """
        while self._results:
            self._take_result()
        error, self._error = self._error, None
        if error is not None:
            raise RemoteError(error)

    def end(self) -> None:
        """Let the workers return from `work` after all scheduled calls.

        They also return when rank 0 leaves the world or ends.
        """
        self._ask(Kind.END)

    def work(self) -> None:
        """On workers: execute the coordinator's calls until it calls `end` or leaves."""
        while (asked := self._ask(Kind.NEXT_CALL)) is not None:
            number, call = asked
            name, args, kwargs = pickle.loads(call)  # from a process that knows the job key
            try:
                outcome = True, self._functions[name](*args, **kwargs)
            except Exception:
                outcome = False, f"{name} failed on rank {world.rank()}:\n{traceback.format_exc()}"
            self._ask(Kind.REPORT, number, pickle.dumps(outcome))

    def _check(self, name: str) -> None:
        if name not in self._functions:
            known = ", ".join(sorted(self._functions))
            raise UsageError(f"{name!r} is no function of this Coordinator: it has {known}")
        if world.rank() != 0:
            raise UsageError(f"rank {world.rank()} schedules {name!r}, and only rank 0 may: the others call work()")

    def _take_result(self) -> None:
        taken = self._ask(Kind.NEXT_RESULT)
        assert taken is not None
        outcome = pickle.loads(taken[1])
        self._results.pop(taken[0])._outcome = outcome
        if not outcome[0] and self._error is None:
            self._error = outcome[1]

    def _ask(self, kind: Kind, number: int = 0, text: bytes = b"") -> tuple[int, bytes] | None:
        """Send a request. Return the number and the text of the answer, or None if it has no text."""
        try:
            send(self._connection, kind, number, parts=[text])
            header = expected(self._connection)
            answer = receive_text(self._connection, header.length)
        except OSError as error:
            with suppress(OSError):
                self._connection.close()
            raise JobAbortedError(f"server 0 is gone, and with it what was scheduled: {error}") from None
        return None if header.kind == Kind.DONE else (header.number, answer)
