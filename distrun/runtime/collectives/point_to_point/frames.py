"""Frames: what travels between two ranks on a connection for messages.

Each begins with a header of 64 bytes. The sender of a message gives it a number, by which both sides know it:

    MESSAGE     a small message, whose bytes follow; it was paid for from the sender's credit
    OFFER       a message that is sent when the receiver asks for it
    GRANT       the receiver asks for the bytes of an offered message: it knows where to put them
    BYTES       those bytes follow
    REFUSAL     the receiver does not take an offered message: a sentence follows
    WITHDRAWAL  the sender does not send a message that was asked for: a sentence follows
    CREDIT      the receiver has taken small messages of so many bytes, and more may come
    FAREWELL    the rank leaves; nothing follows
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MESSAGE, OFFER, GRANT, BYTES, REFUSAL, WITHDRAWAL, CREDIT, FAREWELL = range(8)
"""The kinds of frames."""
HAVE_BODY = frozenset((MESSAGE, REFUSAL, WITHDRAWAL))
"""The kinds whose few bytes follow the header; those of BYTES may be many, and go straight to where they belong."""

_HEADER = struct.Struct("<B7xQqQQ24s")
HEADER_SIZE = _HEADER.size
LONGEST_DTYPE = 24
"""Characters of the name of an element type."""
_MOST_WORDS = 4000  # bytes of a sentence


class Frame(NamedTuple):
    """The header of a frame; what a kind does not need is 0."""

    kind: int
    group: int = 0
    """The ranks among which the message travels, as a number."""
    tag: int = 0
    number: int = 0
    size: int = 0
    """Bytes of the message, whether they follow or not, of the sentence, or of the credit."""
    dtype: str = ""

    def pack(self) -> bytes:
        """Return the header as it is sent."""
        kind, group, tag, number, size, dtype = self
        return _HEADER.pack(kind, group, tag, number, size, dtype.encode())


def unpack(data: bytes | memoryview, offset: int = 0) -> Frame:
    """Return the header that begins at a place of what was received."""
    kind, group, tag, number, size, dtype = _HEADER.unpack_from(data, offset)
    return Frame(kind, group, tag, number, size, dtype.rstrip(b"\0").decode())


def sentence(kind: int, number: int, text: str) -> bytes:
    """Return a whole frame that tells why a message does not travel."""
    words = text.encode()[:_MOST_WORDS]
    return Frame(kind, number=number, size=len(words)).pack() + words
