"""Transfers: messages that this rank is sending or receiving."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrun.runtime.collectives.point_to_point.messenger import Messenger


@lru_cache(maxsize=1024)
def group_number(name: str) -> int:
    """Return the number that stands for a group's name in frames."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class Transfer:
    """A message that is being sent or received."""

    owner: Messenger
    """Set when it begins."""
    began: float
    """When it began, by the waking clock."""

    def __init__(self, memory: memoryview, group: str, tag: int, dtype: str) -> None:
        """`memory` has the bytes of the message, or is where they go. Sender and receiver give the same `group`, the
        name of a group of ranks, the same `tag`, and the same `dtype`, of at most 24 characters."""
        self.memory = memory
        self.group = group_number(group)
        self.tag = tag
        self.dtype = dtype
        self.source: int | None = None
        """The rank that sends the message. None for a send, and while it is not known."""
        self.done = False
        """Whether it has ended: then `error` is set if it failed, and its memory is no longer used."""
        self.error: Exception | None = None
        self.callbacks: list[Callable[[], None]] = []
        """The functions to call at the end. Only the messenger adds to them: other callers use `when_done`."""

    @property
    def size(self) -> int:
        """Bytes of its memory."""
        return len(self.memory)

    def contents(self) -> str:
        """Return `400 bytes of float32 with tag 7`."""
        return describe(self.size, self.dtype, self.tag)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the transfer has ended successfully.

        Args:
            timeout: seconds until it is given up. None: the stall timeout, if there is one.

        Raises:
            JobAbortedError: the other rank is gone, the job has failed, or this rank has shut down.
            StallError: the timeout has passed.
            MismatchError: the other rank's message has another size or dtype.
            UsageError: a callback of a transfer calls this: it would block the thread that ends transfers.
        """
        if not self.done:
            self.owner.wait(self, timeout)
        if self.error is not None:
            raise self.error

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the end, in the thread that ends the transfer, or now, if it has ended already."""
        if self.done:
            callback()
        else:
            self.owner.when_done(self, callback)

    def ended(self, error: Exception | None) -> None:
        """Record the end. Only the messenger calls this, once, and then calls the callbacks."""
        self.error = error
        self.done = True


class Send(Transfer):
    """A message to another rank."""

    def __init__(self, memory: memoryview, destination: int, group: str, tag: int, dtype: str) -> None:
        super().__init__(memory, group, tag, dtype)
        self.destination = destination
        self.number = 0
        """The number of its offer, or 0 if it was not offered."""
        self.is_granted = False
        """Whether the receiver has asked for its bytes."""


class Receive(Transfer):
    """A message from another rank."""

    def __init__(self, memory: memoryview, sources: Sequence[int], group: str, tag: int, dtype: str) -> None:
        """`sources` are the ranks that it may come from: the first message to arrive is taken."""
        super().__init__(memory, group, tag, dtype)
        self.sources = frozenset(sources)
        if len(self.sources) == 1:
            (self.source,) = self.sources


def describe(size: int, dtype: str, tag: int) -> str:
    """Return the description of a message for error messages: `400 bytes of float32 with tag 7`."""
    return f"{size} bytes of {dtype} with tag {tag}"
