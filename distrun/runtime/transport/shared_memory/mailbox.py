"""Mailboxes: messages from one rank to another of the same host, through a ring buffer in shared memory.

There is one writer and one reader, so there are no locks. The writer owns `head`, the reader owns `tail`. Both count
bytes and never decrease. Their remainders modulo `RING` are positions in the ring. A message is its length in 8 bytes,
then its bytes, padded to a multiple of 8. The writer advances `head` after it has written the message, and only then
does the reader see it. The reader advances `tail` after it has copied the message, and only then may the writer
overwrite it.
"""

from __future__ import annotations

import ctypes
from functools import cached_property

from distrun.runtime.transport.shared_memory.doorbell import SEES_STORES_IN_ORDER, full_fence
from distrun.runtime.transport.shared_memory.segment import LINE, PAGE, RING, Segment

_HEAD, _TAIL = 0, LINE
LARGEST = RING // 4
"""Bytes of the largest message. The lengths of names and shapes, which users choose, are checked at submission."""


class Mailbox:
    """One direction between two ranks, in ring number `index` of `segment` (see `Layout.ring`)."""

    def __init__(self, segment: Segment, index: int) -> None:
        start = segment.layout.ring(index)
        self._words = segment.buffer[start : start + PAGE].cast("q")
        self._ring = segment.buffer[start + PAGE : start + PAGE + RING]
        self._lengths = self._ring.cast("q")

    def put(self, message: bytes) -> bool:
        """Writer: append a message of at most `LARGEST` bytes. Return False if there is no room for it now."""
        length = len(message)
        assert length <= LARGEST, length
        padded = -(-length // 8) * 8
        head = self._words[_HEAD]
        if head + 8 + padded - self._words[_TAIL] > RING:
            return False
        self._lengths[head % RING // 8] = length
        start = (head + 8) % RING
        first = min(length, RING - start)
        self._ring[start : start + first] = message[:first]
        if first < length:
            self._ring[: length - first] = message[first:]
        if not SEES_STORES_IN_ORDER:
            full_fence()
        self._words[_HEAD] = head + 8 + padded
        return True

    def __bool__(self) -> bool:
        """Reader: whether there is a message."""
        return self._words[_HEAD] != self._words[_TAIL]

    def get(self) -> bytes | None:
        """Reader: remove and return the oldest message, or None if there is none."""
        tail = self._words[_TAIL]
        if self._words[_HEAD] == tail:
            return None
        if not SEES_STORES_IN_ORDER:
            full_fence()
        length = self._lengths[tail % RING // 8]
        start = (tail + 8) % RING
        first = min(length, RING - start)
        message = bytes(self._ring[start : start + first])
        if first < length:
            message += bytes(self._ring[: length - first])
        if not SEES_STORES_IN_ORDER:
            full_fence()
        self._words[_TAIL] = tail + 8 + -(-length // 8) * 8
        return message

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        """The addresses of `head`, `tail` and the ring."""
        words = ctypes.addressof(ctypes.c_char.from_buffer(self._words))
        return words + 8 * _HEAD, words + 8 * _TAIL, ctypes.addressof(ctypes.c_char.from_buffer(self._ring))
