"""The error that no call has raised yet: a script that ends without having seen it must not end successfully."""

from __future__ import annotations


class UnreportedError:
    """An error that has ended operations whose results the script may never ask for.

    The thread that finds the error notes it here, and the first call that raises an error marks it as reported. If none
    does, `distrun.shutdown()` raises it, and at the interpreter's exit it makes the exit status 1.
    """

    text: str | None = None

    def note(self, text: str) -> None:
        """Note an error that some call has to raise. The first one stays."""
        self.text = self.text or text

    def retract(self, text: str) -> None:
        """Take back an error that turned out not to have ended anything."""
        if self.text == text:
            self.text = None

    def reported(self) -> None:
        """Note that a call raises the error."""
        self.text = None
