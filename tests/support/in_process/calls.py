"""Calls in threads of their own: a result or an error is that of the future, and does not go unseen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

DEADLINE = 60.0  # seconds; far more than anything takes, so that a busy machine fails no test


def started(call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Start a call in a thread."""
    return Caller(call, *arguments).future


class Caller(threading.Thread):
    """A thread with a call, which a subclass can look at meanwhile."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(daemon=True)
        self._call, self._arguments = call, arguments
        self.future: Future[Any] = Future()
        self.start()

    def run(self) -> None:
        try:
            self.future.set_result(self._call(*self._arguments))
        except BaseException as error:
            self.future.set_exception(error)

    @property
    def error(self) -> BaseException | None:
        """The error of the call, at its end."""
        return self.future.exception(2 * DEADLINE)

    def end(self) -> Any:
        """Wait for the end of the call; return its result, or raise its error."""
        return self.future.result(2 * DEADLINE)


def at_once(call: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Call a function for all items, each in a thread; return the results, or raise the first error."""
    futures = [started(call, item) for item in items]
    return [future.result(2 * DEADLINE) for future in futures]
