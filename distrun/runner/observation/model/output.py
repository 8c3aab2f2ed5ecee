"""The output of a rank, and its progress: the last line, and the time that a progress bar says is left. Pure.

Understood are the bars of tqdm (`12%|#2   | 120/1000 [00:12<01:28, 10.0it/s]`), which tell the time that is left, and
those of Keras (`120/1000 ---- 1:28 100ms/step - loss: 0.3`), which do, too. Both draw a line again and again after a
carriage return; Keras also moves the cursor back by backspaces.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])|[\x08\x00-\x06\x0e-\x1a\x7f]")
_LONGEST = 4096
_TQDM = re.compile(r"(\d+)/(\d+) \[[\d:]+<([\d:]+)")
_KERAS = re.compile(r"(?:^|\s)(\d+)/(\d+) \S+ ((?:\d+:)*\d+)(s?) \S+/(?:step|epoch)")


class RankOutput:
    """The output of one rank, of which its last line is kept."""

    def __init__(self) -> None:
        self.last_line = ""
        """The last line that was written, or is being written, and has something in it."""
        self.is_bar = False
        """Whether that is a progress bar."""
        self.lines = 0
        """Lines, and states of progress bars, so far."""
        self.seconds_left: float | None = None
        """The time left by its progress bar, when that was drawn; None: there is none."""
        self._partial = ""

    def feed(self, data: bytes) -> None:
        """Take what the rank has written."""
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


def seconds_left(line: str) -> float | None:
    """Return how long a progress bar says that it will take; None: it is none, or does not say."""
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
