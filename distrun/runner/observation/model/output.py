"""The output of a rank: its last lines, and the time left according to a progress bar. Pure.

The progress bars of tqdm (`12%|#2 | 120/1000 [00:12<01:28, 10.0it/s]`) and of Keras (`120/1000 ---- 1:28 100ms/step -
loss: 0.3`) are understood, which both have the time left. Both redraw the line after a carriage return. Keras also
moves the cursor back with backspaces.
"""

from __future__ import annotations

import re
from collections import deque

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])|[\x08\x00-\x06\x0e-\x1a\x7f]")
KEPT_LINES = 30
_LONGEST = 4096  # of a line, and of what is kept of an unfinished one
_TQDM = re.compile(r"(\d+)/(\d+) \[[\d:]+<([\d:]+)")
_KERAS = re.compile(r"(?:^|\s)(\d+)/(\d+) \S+ ((?:\d+:)*\d+)(s?) \S+/(?:step|epoch)")


class RankOutput:
    """The output of one rank, reduced to its last line and progress."""

    def __init__(self) -> None:
        self.last_line = ""
        """The last line that is not blank, which may be unfinished."""
        self.is_bar = False
        """Whether `last_line` is a progress bar."""
        self.lines = 0
        """The number of lines and states of progress bars so far."""
        self.seconds_left: float | None = None
        """The seconds left according to its progress bar, at its last state. None = it has no progress bar."""
        self._partial = ""

    def feed(self, data: bytes) -> None:
        """Take output of the rank."""
        text = self._partial + data.decode(errors="replace")
        pieces = re.split(r"(\r\n|\n|\r)", text[-(1 << 16) :])
        for line, end in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
            self.lines += bool(end)
            self._see(line, end)
        self._partial = pieces[-1][-_LONGEST:]

    def _see(self, line: str, end: str) -> None:
        line = _ESCAPES.sub("", line).strip()[:_LONGEST]
        if not line:
            return
        self.last_line = line
        left = seconds_left(line)
        self.is_bar = left is not None
        if left is not None:
            self.seconds_left = left
        elif end == "\n":
            self.seconds_left = None


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


def seconds_left(line: str) -> float | None:
    """Return the seconds left according to a progress bar, or None if `line` is not one or does not have the time."""
    if match := _TQDM.search(line):
        return _seconds(match[3])
    if match := _KERAS.search(line):
        return _seconds(match[3]) if int(match[1]) < int(match[2]) else 0.0
    return None


def _seconds(text: str) -> float:
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part or 0)
    return float(total)
