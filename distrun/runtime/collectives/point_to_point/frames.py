"""Frames: what travels between two ranks on a connection for messages.

Each begins with a header of 64 bytes. The sender of a large message gives it a number, which identifies it in all its
frames:

    MESSAGE     a small message, whose bytes follow; they count against the sender's credit
    OFFER       a message whose bytes are sent when the receiver asks for them
    GRANT       the receiver asks for the bytes of an offered message, and has memory for them
    BYTES       the bytes of a granted message follow
    REFUSAL     the receiver does not take an offered message; a sentence follows
    WITHDRAWAL  the sender does not send a granted message; a sentence follows
    CREDIT      the receiver has taken `size` bytes of small messages, so the sender may send as many more
    FAREWELL    the rank leaves; no frame follows
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MESSAGE, OFFER, GRANT, BYTES, REFUSAL, WITHDRAWAL, CREDIT, FAREWELL = range(8)
"""The kinds of frames."""
HAVE_BODY = frozenset((MESSAGE, REFUSAL, WITHDRAWAL))
"""The kinds with a small body after the header. The body of BYTES may be large, and goes straight to the receiver's
memory."""

_HEADER = struct.Struct("<B7xQqQQ24s")
HEADER_SIZE = _HEADER.size
LONGEST_DTYPE = 24
"""Characters of the name of an element type."""
_MOST_WORDS = 4000  # the longest sentence, in bytes


class Frame(NamedTuple):
    """The header of a frame. Fields that a kind does not use are 0."""

    kind: int
    group: int = 0
    """The number of the group of ranks that the message belongs to."""
    tag: int = 0
    number: int = 0
    size: int = 0
    """Bytes of the message (whether they follow or not), of the sentence, or of the credit."""
    dtype: str = ""

    def pack(self) -> bytes:
        """Return the header as it is sent."""
        kind, group, tag, number, size, dtype = self
        return _HEADER.pack(kind, group, tag, number, size, dtype.encode())


def unpack(data: bytes | memoryview, offset: int = 0) -> Frame:
    """Return the header that begins at `offset` in `data`."""
    kind, group, tag, number, size, dtype = _HEADER.unpack_from(data, offset)
    return Frame(kind, group, tag, number, size, dtype.rstrip(b"\0").decode())


def sentence(kind: int, number: int, text: str) -> bytes:
    """Return a whole frame with the reason why a message is not sent."""
    words = text.encode()[:_MOST_WORDS]
    return Frame(kind, number=number, size=len(words)).pack() + words
