"""A panel of lines that stays at the bottom of a terminal while output scrolls above it.

Only the printing thread writes to the terminal. Other threads set new lines and request a repaint. Progress bars do not
scroll: rank 0's is the panel's first line, and the others are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-_])")
_BACKSPACES = re.compile(rb"[\x08]+")
# Keras ends each state of its progress bar with a line feed if it does not write to a terminal.
_KERAS = re.compile(rb"^\s*(\d+)/(\d+) \S+ (?:\d+:)*\d+s? \S+/(?:step|epoch)")
_TQDM = re.compile(rb"\d(?:it|/\S+) \[\d[^\]]*\]\s*$")
_LONGEST = 4096
Key = tuple[int, str]


class _Line:
    """The unfinished line of one stream of one rank."""

    def __init__(self) -> None:
        self.text = b""
        """The text since its beginning, or since a carriage return."""
        self.before = b""
        """The previous state of a progress bar, which `text` replaces as soon as there is any."""
        self.is_bar = False


class Panel:
    """The panel. Methods belong to the printing thread, except those marked for any thread."""

    def __init__(self, descriptor: int) -> None:
        """Args: `descriptor` is the descriptor of the terminal."""
        status = os.fstat(descriptor)
        self.identity: object = (status.st_dev, status.st_ino)
        self._descriptor = descriptor
        self._request: Callable[[], None] = lambda: None
        self._wanted: tuple[bytes, ...] = ()
        self._drawn: list[int] = []  # the widths of the lines on the screen
        self._lines: dict[Key, _Line] = {}
        self._has_news = False

    # For any thread
    # ----------------------------------------------------------------------------------------------------

    def on_request(self, request: Callable[[], None]) -> None:
        """Set the callback that requests a repaint, which any thread may call."""
        self._request = request

    @property
    def size(self) -> tuple[int, int]:
        """The columns and rows of the terminal."""
        try:
            size = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def show(self, lines: Sequence[str]) -> None:
        """Replace the lines of the panel. An empty sequence removes the panel."""
        self._wanted = tuple(line.encode(errors="replace") for line in lines)
        self._request()

    # Output of ranks -------------------------------------------------------------------------------------------------

    def whole(self, key: Key, pieces: Sequence[bytes]) -> list[bytes]:
        """Take further pieces of a rank's stream, and return the lines that are complete. The rest is kept."""
        line = self._lines.setdefault(key, _Line())
        found = []
        for piece in pieces:
            text = piece.rstrip(b"\r\n")
            line.text = (line.text + text)[-_LONGEST:] if len(piece) < _LONGEST else line.text + text
            if piece.endswith(b"\n"):
                found += self._ended(key, line)
            elif piece.endswith(b"\r"):
                line.is_bar = True
                line.before, line.text = line.text or line.before, b""
        self._has_news |= key[0] == 0
        return found

    def _ended(self, key: Key, line: _Line) -> list[bytes]:
        drawn = line.text or line.before
        keras = _KERAS.match(_plain(line.text))
        if keras and int(keras[1]) < int(keras[2]):
            line.before, line.text, line.is_bar = line.text, b"", True
            return []
        ends_bar = not line.text or keras is not None or _TQDM.search(_plain(line.text)) is not None
        is_left_out = key[0] != 0 and line.is_bar and ends_bar
        line.text, line.before, line.is_bar = b"", b"", False
        return [] if is_left_out else [drawn + b"\n"]

    def unfinished(self) -> list[tuple[Key, bytes]]:
        """Return the unfinished lines at the end of the job, except for other ranks' progress bars."""
        left = [(key, line.text or line.before) for key, line in self._lines.items() if not line.is_bar or not key[0]]
        self._lines.clear()
        return [(key, text) for key, text in left if text]

    def _bar(self) -> bytes:
        for (rank, _), line in self._lines.items():
            if rank == 0 and (text := line.text or line.before):
                return _BACKSPACES.sub(b"", text)
        return b""

    # Painting ---------------------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether rank 0's line has changed since the last painting."""
        return self._has_news

    def around(self, data: bytes) -> bytes:
        """Return the bytes that write `data`, whole lines or nothing, and repaint the panel below."""
        self._has_news = False
        columns, rows = self.size
        bar = self._bar()
        wanted = [*([bar] if bar and self._wanted else ()), *self._wanted][: max(1, rows - 1)]
        if not wanted and bar:
            wanted = [bar]
        erase = self._erased(columns, rows)
        if data and not data.endswith(b"\n"):
            data += b"\n"
        self._drawn = [len(_plain(line).decode(errors="replace")) for line in wanted]
        if not wanted:
            return erase + data
        return b"\x1b[?2026h" + erase + data + b"\x1b[?7l" + b"\r\n".join(wanted) + b"\x1b[0m\x1b[?7h\x1b[?2026l"

    def _erased(self, columns: int, rows: int) -> bytes:
        if not self._drawn:
            return b""
        # A terminal with fewer columns than before has wrapped them.
        up = sum(1 + max(0, min(width, 4 * columns) - 1) // columns if width > columns else 1 for width in self._drawn)
        up = min(up - 1, rows - 1)
        # Line by line, as some terminals save the text in their history when the screen is cleared from the first line.
        return b"\r" + b"\x1b[2K\x1b[A" * up + b"\x1b[2K"


def _plain(line: bytes) -> bytes:
    return _ESCAPES.sub(b"", line)
