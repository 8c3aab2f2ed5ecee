"""Calls in threads of their own: a result or an error is that of the future, and does not go unseen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

DEADLINE = 60.0  # seconds; far more than anything takes, so that a busy machine fails no test


def started(call: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Start a call in a thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def at_once(call: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Call a function for all items, each in a thread; return the results, or raise the first error."""
    futures = [started(call, item) for item in items]
    return [future.result(2 * DEADLINE) for future in futures]
