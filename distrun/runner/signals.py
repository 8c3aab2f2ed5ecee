"""Signals to the launcher become events; nothing else is done where they arrive."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distrun.runner.events import Event, SignalReceived

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def posted(post: Callable[[Event], None]) -> Iterator[None]:
    """While this context lasts, signals are events. Outside the main thread, where Python allows no handlers, it does
    nothing.

    Args:
        post: must be reentrant, as `queue.SimpleQueue.put` is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for signum in _HANDLED:
        if signum == signal.SIGHUP and signal.getsignal(signum) is signal.SIG_IGN:
            continue  # started by nohup
        before[signum] = signal.signal(signum, lambda number, _: post(SignalReceived(number)))
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
