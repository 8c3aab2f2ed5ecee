"""Mailboxes: messages from one rank to another of the same host, through a ring in shared memory.

One writer, one reader. The writer owns `head`, the reader owns `tail`; both only ever grow, in bytes. A message is its
length in 8 bytes, then its bytes, padded to 8. The reader sees a message once `head` has passed it.
"""

from __future__ import annotations

from distrun.runtime.transport.shared_memory.segment import LINE, PAGE, RING, Segment

_HEAD, _TAIL = 0, LINE
LARGEST = RING // 4
"""Bytes of the largest message. Names and shapes, which users can make long, are checked when they are submitted."""


class Mailbox:
    """One direction between two ranks; `index` is the ring's number in `segment` (see `Layout.ring`)."""

    def __init__(self, segment: Segment, index: int) -> None:
        start = segment.layout.ring(index)
        self._words = segment.buffer[start : start + PAGE].cast("q")
        self._ring = segment.buffer[start + PAGE : start + PAGE + RING]
        self._lengths = self._ring.cast("q")
        self._head = self._words[_HEAD]
        self._tail = self._words[_TAIL]

    def put(self, message: bytes) -> bool:
        """Writer: append a message of at most `LARGEST` bytes; False when there is no room for it now."""
        length = len(message)
        assert length <= LARGEST, length
        padded = -(-length // 8) * 8
        head = self._head
        if head + 8 + padded - self._words[_TAIL] > RING:
            return False
        self._lengths[head % RING // 8] = length
        start = (head + 8) % RING
        first = min(length, RING - start)
        self._ring[start : start + first] = message[:first]
        if first < length:
            self._ring[: length - first] = message[first:]
        self._head = self._words[_HEAD] = head + 8 + padded
        return True

    def __bool__(self) -> bool:
        """Reader: whether a message waits."""
        return self._words[_HEAD] != self._tail

    def get(self) -> bytes | None:
        """Reader: take the oldest message; None when there is none."""
        tail = self._tail
        if self._words[_HEAD] == tail:
            return None
        length = self._lengths[tail % RING // 8]
        start = (tail + 8) % RING
        first = min(length, RING - start)
        message = bytes(self._ring[start : start + first])
        if first < length:
            message += bytes(self._ring[: length - first])
        self._tail = self._words[_TAIL] = tail + 8 + -(-length // 8) * 8
        return message
