"""Signals to the launcher become events, and the handlers do nothing else.

Python runs a handler in the main thread, between two bytecode instructions. If a signal arrived just before that thread
begins to wait for the next event, it would not be handled before the wait is over. So this module relies on the wakeup
descriptor: the interpreter writes the signal's number to it at once, in any thread, and a thread here reads it.
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
    """Post signals as events while this context lasts.

    Outside the main thread, where Python allows no handlers, it does nothing. SIGHUP stays ignored if it is ignored:
    then nohup has started the launcher, and the job is to survive the end of the login. So does SIGTSTP, which a shell
    without job control ignores, since it could not continue a stopped launcher.

    Args:
        post: called with each event, in another thread.
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
    """Stop this process as Ctrl-Z does, and return when SIGCONT comes. Call it in the main thread, within `posted`.

    It returns at once in an orphaned process group, where no shell could continue the process: there the kernel does
    not stop processes by SIGTSTP.
    """
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    try:
        signal.raise_signal(signal.SIGTSTP)
    finally:
        signal.signal(signal.SIGTSTP, handler)


def _do_nothing(number: int, frame: object) -> None:
    """Handle a signal, so that it neither ends the process nor is ignored, and its number goes to the descriptor."""


def _read(numbers: int, post: Callable[[Event], None]) -> None:
    while data := os.read(numbers, 64):
        for number in data:
            if number in _HANDLED:
                post(SignalReceived(number))
    os.close(numbers)
