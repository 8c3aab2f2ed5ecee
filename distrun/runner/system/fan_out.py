"""Doing the same with many hosts at once, such as connecting to them or asking a name server about them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

# A handshake costs milliseconds of CPU, and a silent host 10 s of waiting: many threads are right, thousands are not.
MAX_THREADS = 100

T = TypeVar("T")
R = TypeVar("R")


def start_for_each(work: Callable[[T], object], items: Sequence[T], name: str, max_threads: int = MAX_THREADS) -> None:
    """Begin to call a function for every item, in a few threads that share the items; return at once.

    The threads are daemons: nobody waits at exit for a host that does not answer.

    Args:
        work: must not raise.
        items: its arguments, one per call.
        name: what the threads are called in a debugger.
        max_threads: the largest number of calls at the same time.
    """
    waiting: SimpleQueue[T] = SimpleQueue()
    for item in items:
        waiting.put(item)

    def serve() -> None:
        while True:
            try:
                item = waiting.get_nowait()
            except Empty:
                return
            work(item)

    for number in range(min(max_threads, len(items))):
        threading.Thread(target=serve, name=f"distrun {name} {number}", daemon=True).start()


def call_for_each(work: Callable[[T], R], items: Sequence[T], name: str, max_threads: int = MAX_THREADS) -> list[R]:
    """Call a function for every item, many at once, and return the results in the order of the items.

    Raises:
        BaseException: the first exception of the function, while other calls may still go on.
    """
    done: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()

    def call(numbered: tuple[int, T]) -> None:
        index, item = numbered
        try:
            done.put((index, work(item), None))
        except BaseException as error:
            done.put((index, None, error))

    start_for_each(call, list(enumerate(items)), name, max_threads)
    results: dict[int, R] = {}
    for _ in items:
        index, result, error = done.get()
        if error is not None:
            raise error
        results[index] = result  # type: ignore[assignment]  # no error, so it is a result
    return [results[index] for index in range(len(items))]
