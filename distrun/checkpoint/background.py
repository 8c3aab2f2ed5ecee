"""A thread for work beside the training, one function at a time."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable

from distrun.errors import CheckpointError
from distrun.runtime.world import world

_log = logging.getLogger("distrun")
_failed: list[CheckpointError] = []
"""Errors of all writers that no call has raised yet."""


class Writer:
    """Runs one function at a time, each in a new thread.

    The interpreter waits for the thread before it exits. If the last function has failed and no call has raised its
    error, the process exits with status 1.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._error: CheckpointError | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start `work` in a thread. `wait` must have been called before."""
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, args=(work,), name="distrun checkpoint")
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except CheckpointError as error:
            self._error = error
            _failed.append(error)

    def wait(self) -> None:
        """Wait until the last function has ended.

        Raises:
            CheckpointError: the error of that function. It is raised once.
        """
        if self._owner != os.getpid():  # a forked child has neither the thread nor its errors
            self._thread = self._error = None
            return
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            _failed.remove(error)
            raise error


def _report() -> None:
    """Log errors that no call has raised, and exit with status 1: a lost checkpoint must not end in success."""
    for error in _failed:
        _log.error("%s", error)
    if _failed and getattr(sys, "last_value", None) is None:
        world.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


atexit.register(_report)
os.register_at_fork(after_in_child=_failed.clear)
