"""Signals to the launcher, which become events; nothing else is done where they arrive.

Python runs a handler in the main thread, between two of its instructions. A signal that arrives just before that thread
begins to wait for the next event would not be handled before the wait is over. So we rely on what the interpreter does
at once, in whichever thread: it writes the signal's number to a descriptor, where a thread of ours reads it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distrun.runner.decisions.events import Event, SignalReceived

_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a job."""
_LEFT_IGNORED = (signal.SIGHUP, signal.SIGTSTP)


@contextmanager
def posted(post: Callable[[Event], None]) -> Iterator[None]:
    """Post signals as events for as long as this context lasts.

    Outside the main thread, where Python allows no handlers, it does nothing. SIGHUP stays ignored if it is: then nohup
    has started us, and the job is to survive the end of the login. So does SIGTSTP: a shell without job control, which
    could not let us go on, ignores it.

    Args:
        post: is given each event, by another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers, written = os.pipe()
    os.set_blocking(written, False)
    reader = threading.Thread(target=_read, args=(numbers, post), name="distrun signals", daemon=True)
    reader.start()
    before_fd = signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    before = {}
    for signum in _HANDLED:
        if signum in _LEFT_IGNORED and signal.getsignal(signum) is signal.SIG_IGN:
            continue
        before[signum] = signal.signal(signum, _do_nothing)
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(before_fd)
        os.close(written)  # which ends the reader
        reader.join()


def stop_this_process() -> None:
    """Stop as Ctrl-Z stops a program; returns when SIGCONT comes. Call it in the main thread, within `posted`.

    It returns at once where nobody could let this process go on: the kernel stops no process by SIGTSTP whose group has
    no parent in the session.
    """
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    try:
        signal.raise_signal(signal.SIGTSTP)
    finally:
        signal.signal(signal.SIGTSTP, handler)


def _do_nothing(number: int, frame: object) -> None:
    """Be the handler: a signal with one neither ends us nor is ignored, and its number is written to the descriptor."""


def _read(numbers: int, post: Callable[[Event], None]) -> None:
    while data := os.read(numbers, 64):
        for number in data:
            if number in _HANDLED:
                post(SignalReceived(number))
    os.close(numbers)
