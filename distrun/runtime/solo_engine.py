"""The engine of a world of one: an operation is carried out where it is submitted."""

from __future__ import annotations

import os

from distrun.runtime.backends.solo import SoloBackend
from distrun.runtime.handles import Handle
from distrun.runtime.performing import perform


class SoloEngine:
    """Has the same verbs as `Engine`, with nobody to agree with."""

    def __init__(self) -> None:
        self.backend = SoloBackend()
        self._pid = os.getpid()

    def submit(self, handle: Handle) -> Handle:
        """Carry the operation out."""
        perform(self.backend, [handle])
        handle.done = True
        return handle

    run = submit

    def wait(self, handle: Handle) -> None:
        """Nothing is ever under way."""

    def is_ours(self) -> bool:
        """Whether this process, not a parent it was forked from, made the engine."""
        return os.getpid() == self._pid

    def shutdown(self) -> None:
        """Nothing to let go of."""
