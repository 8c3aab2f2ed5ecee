"""The signals that end a process which has joined, or is about to: as a descriptor, for code that waits for
something."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from distrun.runner.decisions import signals
from distrun.runner.decisions.events import Event, SignalReceived


class Interruption:
    """The end that a signal demands of this process, if one has come."""

    def __init__(self) -> None:
        self.signum = 0
        """The signal that told it; 0 = none has come."""
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return a descriptor that is readable from the signal on."""
        return self._event

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to signals for as long as this context lasts; outside the main thread there are none to hear."""
        with signals.posted(self._note):
            yield

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._event)

    def _note(self, event: Event) -> None:
        if isinstance(event, SignalReceived) and event.signum in signals.ENDING and not self.signum:
            self.signum = event.signum
            os.eventfd_write(self._event, 1)
