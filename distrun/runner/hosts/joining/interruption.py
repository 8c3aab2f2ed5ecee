"""The signal that ends a process which has joined, or is about to join, as a descriptor to wait for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from distrun.runner.decisions import signals
from distrun.runner.decisions.events import Event, SignalReceived


class Interruption:
    """The first ending signal that this process receives, if it receives one."""

    def __init__(self) -> None:
        self.signum = 0
        """The signal. 0 = none was received."""
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return a descriptor that is readable once the signal was received."""
        return self._event

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals while this context lasts. Outside the main thread, no signal is noted."""
        with signals.posted(self._note):
            yield

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._event)

    def _note(self, event: Event) -> None:
        if isinstance(event, SignalReceived) and event.signum in signals.ENDING and not self.signum:
            self.signum = event.signum
            os.eventfd_write(self._event, 1)
