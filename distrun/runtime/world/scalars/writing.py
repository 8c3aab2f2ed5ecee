"""The thread of rank 0 that writes figures about its own use of time wherever the script writes scalars."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from distrun.contract.settings import EVENTS
from distrun.errors import UsageError
from distrun.runtime.world.scalars.shares import Shares
from distrun.runtime.world.scalars.sinks import ActiveRun, KerasCallbacks, Sink, SummaryWriters
from distrun.tracing import recording
from distrun.tracing.reader import RingReader, events

log = logging.getLogger("distrun")

LOOK_EVERY = 1.0
"""Seconds between two reads of the ring, which holds several seconds at least."""

_writing: Writing | None = None


class Writing:
    """Writes figures until it is ended."""

    def __init__(self, every: float, is_first: Callable[[], bool]) -> None:
        """`every` is the number of seconds between two writes."""
        assert recording.ring is not None
        self._every = every
        self._is_first = is_first
        self._reader = RingReader(recording.ring.memory)
        self._reader.read()  # skips earlier events
        self._shares = Shares(time.monotonic_ns())
        self._sinks: list[Sink] = [SummaryWriters(), KerasCallbacks(), ActiveRun()]
        self._process = os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="distrun scalars", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Write the remaining figures, and stop."""
        if os.getpid() == self._process:
            self._ended.set()
            self._thread.join()

    def _work(self) -> None:
        due = time.monotonic() + self._every
        while not self._ended.wait(min(LOOK_EVERY, self._every)):
            self._shares.take(events(self._reader.read()))
            if time.monotonic() >= due:
                due += self._every
                self._write()
        self._shares.take(events(self._reader.read()))
        self._write()

    def _write(self) -> None:
        figures = self._shares.figures(time.monotonic_ns())
        if not figures or not self._is_first():
            return
        for sink in list(self._sinks):
            try:
                sink.write(figures, self._shares.step)
            except Exception as error:  # whatever it is, the training continues without this sink
                self._sinks.remove(sink)
                log.warning("scalars are not written to %s any more: %s: %s", sink.title, type(error).__name__, error)


def begin(every: float, is_first: Callable[[], bool]) -> None:
    """Start writing, unless it was started already.

    Raises:
        UsageError: events are not recorded.
    """
    global _writing
    if _writing is not None:
        return
    if recording.ring is None:
        raise UsageError(f"DISTRUN_SCALARS needs events, which {EVENTS}=0 leaves out: unset it")
    _writing = Writing(every, is_first)


def end() -> None:
    """Stop writing."""
    global _writing
    writing, _writing = _writing, None
    if writing is not None:
        writing.end()
