"""The engine of a world of one: an operation is carried out where it is submitted."""

from __future__ import annotations

from distrun.runtime.backends.solo import SoloBackend
from distrun.runtime.handles import Handle
from distrun.runtime.performing import perform


class SoloEngine:
    """Has the same verbs as `Engine`, with nobody to agree with."""

    def __init__(self) -> None:
        self.backend = SoloBackend()

    def submit(self, handle: Handle) -> Handle:
        """Carry the operation out."""
        perform(self.backend, [handle])
        handle.done = True
        return handle

    run = submit

    def wait(self, handle: Handle) -> None:
        """Nothing is ever under way."""

    def hurry(self) -> None:
        """Nothing is ever under way."""

    def disown(self) -> None:
        """A forked child may go on alone: nobody else is concerned."""

    def shutdown(self, farewell: str = "") -> None:
        """Nothing to let go of."""
