"""Parallel calls of a function for many hosts, such as connecting to them or looking up their names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

# A handshake costs milliseconds of CPU time, and a host that does not answer 10 s of waiting, so a hundred threads are
# good, but not thousands.
MAX_THREADS = 100

T = TypeVar("T")
R = TypeVar("R")


def start_for_each(work: Callable[[T], object], items: Sequence[T], name: str, max_threads: int = MAX_THREADS) -> None:
    """Begin to call `work` for every item, in a pool of threads. Returns at once.

    The threads are daemons, so that a host that does not answer does not delay the exit.

    Args:
        work: the function, which must not raise.
        items: its arguments, one per call.
        name: a name for the threads, for debuggers.
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
    """Call `work` for every item in parallel, and return the results in the order of the items.

    Raises:
        BaseException: the first exception of a call. Other calls may still be running.
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
