"""Turns the bytes of many ranks into tidy lines on one console: splitting, tagging, and continuing unfinished lines.

Only bytes are handled, so text that is not UTF-8 passes unharmed. A line ends with LF, CR LF or CR (progress bars). A
line that grows beyond `LONGEST` is passed on in pieces, which bounds the memory.
"""

from __future__ import annotations

import re

LONGEST = 1 << 16

_PIECE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")
_CLEAR_TO_END_OF_LINE = b"\x1b[K"


class LineSplitter:
    """Cuts one stream of one rank into lines. A line that is too long comes in several pieces."""

    def __init__(self) -> None:
        self._partial = bytearray()

    @property
    def has_partial(self) -> bool:
        """Whether the beginning of a line is being held back."""
        return bool(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces that are complete now."""
        self._partial += data
        if len(data) < LONGEST and b"\n" not in data and b"\r" not in data and len(self._partial) < LONGEST:
            return []  # a long line in small pieces: do not scan its beginning again for each
        pieces = [match.group() for match in _PIECE.finditer(self._partial)]
        self._partial.clear()
        last = pieces[-1] if pieces else b""
        if last and not last.endswith((b"\n", b"\r")) and len(last) < LONGEST:
            self._partial += pieces.pop()
        return pieces

    def flush(self) -> bytes:
        """Return the unfinished line, and do not wait for its end any longer."""
        partial = bytes(self._partial)
        self._partial.clear()
        return partial


class LineStamper:
    """Puts time stamps in front of the lines of one stream, for a file that gets the bytes unsplit."""

    def __init__(self) -> None:
        self._begins_line = True

    def feed(self, data: bytes, stamp: bytes) -> bytes:
        """Return `data` with `stamp` in front of each line that begins in it."""
        if not data:
            return data
        head = stamp if self._begins_line else b""
        self._begins_line = data.endswith(b"\n")
        return head + data[:-1].replace(b"\n", b"\n" + stamp) + data[-1:]


class Console:
    """The state of one place where output appears, perhaps of several streams: the writer of the line that the cursor
    is on.
    """

    def __init__(self, is_terminal: bool = False) -> None:
        self._is_terminal = is_terminal
        self._last_writer: object = None
        self._last_byte = b"\n"

    def compose(self, writer: object, tag: bytes, pieces: list[bytes]) -> bytes:
        """Return the bytes that show a writer's pieces: each line with its tag, except for a continuation of the
        writer's own line.
        """
        out = []
        for piece in pieces:
            out += [self._prefix(writer, tag, piece), piece]
            self._last_writer, self._last_byte = writer, piece[-1:]
        return b"".join(out)

    def end_line(self) -> bytes:
        """Return the bytes that move the cursor to the beginning of a line."""
        needed = self._last_byte != b"\n"
        self._last_byte = b"\n"
        return b"\n" if needed else b""

    def _prefix(self, writer: object, tag: bytes, piece: bytes) -> bytes:
        own = writer == self._last_writer
        if self._last_byte == b"\n":
            return tag
        if self._last_byte == b"\r":
            if own:
                return b"" if piece == b"\n" else tag
            # Another rank's progress bar is on this line: on a terminal the new text replaces it, and a file gets both.
            return (_CLEAR_TO_END_OF_LINE if self._is_terminal else b"") + tag
        return b"" if own else b"\n" + tag
