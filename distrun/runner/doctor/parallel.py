"""Doing the same with many hosts at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

from distrun.runner.connect.connector import MOST_AT_ONCE

T = TypeVar("T")
R = TypeVar("R")


def at_once(work: Callable[[T], R], items: Sequence[T], most: int = MOST_AT_ONCE) -> list[R]:
    """The results of a function for all items, in their order; some threads share them.

    The threads are daemons: whoever presses Ctrl-C does not wait for a host that is silent. The first exception of the
    function is raised here.
    """
    waiting: SimpleQueue[tuple[int, T]] = SimpleQueue()
    done: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()

    def serve() -> None:
        while True:
            try:
                index, item = waiting.get_nowait()
            except Empty:
                return
            try:
                done.put((index, work(item), None))
            except BaseException as error:
                done.put((index, None, error))

    for pair in enumerate(items):
        waiting.put(pair)
    for number in range(min(most, len(items))):
        threading.Thread(target=serve, name=f"distrun doctor {number}", daemon=True).start()
    results: dict[int, R] = {}
    for _ in items:
        index, result, error = done.get()
        if error is not None:
            raise error
        results[index] = result  # type: ignore[assignment]  # no error, so it is a result
    return [results[index] for index in range(len(items))]
