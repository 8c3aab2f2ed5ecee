"""The last lines of a rank. Pure."""

from __future__ import annotations

from collections import deque

from distrun.runner.observation.model.output import seconds_left

KEPT_LINES = 30
_LONGEST = 4096  # bytes that are kept of an unfinished line


class Log:
    """The last lines of a rank's output, which comes in pieces of any size. A progress bar is one line, in its last
    state.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._begun = b""

    def feed(self, data: bytes) -> None:
        """Take output of the rank."""
        *ended, begun = (self._begun + data).split(b"\n")
        for line in ended:
            _append(self._lines, line)
        self._begun = begun[-_LONGEST:]

    def lines(self) -> list[str]:
        """Return the lines, including an unfinished one (any thread)."""
        lines = deque(self._lines, maxlen=KEPT_LINES)
        _append(lines, self._begun)
        return list(lines)


def _append(lines: deque[str], raw: bytes) -> None:
    text = raw.decode(errors="replace").rstrip("\r").rpartition("\r")[2].strip()
    if not text:
        return
    if lines and seconds_left(text) is not None and seconds_left(lines[-1]) is not None:
        lines.pop()  # a progress bar overwrites its previous state
    lines.append(text)
