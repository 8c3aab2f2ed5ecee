"""The error that no call has raised yet: a script that ends without having heard of it must not end in success."""

from __future__ import annotations


class UnreportedError:
    """An error that has ended operations for which the script may never ask.

    The thread that finds it notes it here; the first call that raises an error marks it as reported. What is left is
    raised by `distrun.shutdown()`; at the interpreter's exit it makes the exit status 1.
    """

    text: str | None = None

    def note(self, text: str) -> None:
        """Note an error that some call has to raise; the first one stays."""
        self.text = self.text or text

    def retract(self, text: str) -> None:
        """Take back an error that has ended nothing after all."""
        if self.text == text:
            self.text = None

    def reported(self) -> None:
        """Note that a call raises it."""
        self.text = None
