"""Transfers: messages that this rank is sending or receiving."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol


@lru_cache(maxsize=1024)
def group_number(name: str) -> int:
    """Return the number by which a group's messages are told from those of others."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class Owner(Protocol):
    """Sees to transfers: a messenger."""

    def wait(self, transfer: Transfer, timeout: float | None) -> None:
        """Return when a transfer has ended well; see `Transfer.wait`."""

    def when_done(self, transfer: Transfer, callback: Callable[[], None]) -> None:
        """Have a function called at the end of a transfer; see `Transfer.when_done`."""


class Transfer:
    """A message on its way."""

    owner: Owner
    """Set when it begins."""
    began: float
    """When it began, by the waking clock."""

    def __init__(self, memory: memoryview, group: str, tag: int, dtype: str) -> None:
        """
        Args:
            memory: the bytes of the message, or where they go.
            group: the name of the ranks among which it travels; messages of other groups are not confused with it.
            tag: tells messages of the group apart; it must match.
            dtype: the element type, which must match, in at most 24 characters.
        """
        self.memory = memory
        self.group = group_number(group)
        self.tag = tag
        self.dtype = dtype
        self.source: int | None = None
        """The rank that has sent the message; None for one that is not known yet."""
        self.done = False
        """Whether it has ended: `error` tells how, and the memory is not used any more."""
        self.error: Exception | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def size(self) -> int:
        """Bytes of its memory."""
        return len(self.memory)

    def contents(self) -> str:
        """Return `400 bytes of float32 with tag 7`."""
        return describe(self.size, self.dtype, self.tag)

    def wait(self, timeout: float | None = None) -> None:
        """Return when the transfer has ended well.

        Args:
            timeout: seconds after which it is given up; None: the stall timeout, if there is one.

        Raises:
            JobAbortedError: the other rank is gone, the job has failed, or this rank has shut down.
            StallError: it was given up.
            MismatchError: the other rank's message is of another size or dtype.
            UsageError: this is a callback of a transfer, and what it waits for needs the thread that calls it.
        """
        if not self.done:
            self.owner.wait(self, timeout)
        if self.error is not None:
            raise self.error

    def when_done(self, callback: Callable[[], None]) -> None:
        """Have a function called at the end: by whatever thread ends the transfer, or here if it has ended."""
        if self.done:
            callback()
        else:
            self.owner.when_done(self, callback)

    def ended(self, error: Exception | None) -> None:
        """Note the end, once. Called by the messenger alone, which then calls back."""
        self.error = error
        self.done = True

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Have a function called at the end. For the owner; others use `when_done`."""
        self._callbacks.append(callback)

    def take_callbacks(self) -> list[Callable[[], None]]:
        """Return the functions that are to be called, and forget them."""
        callbacks, self._callbacks = self._callbacks, []
        return callbacks


class Send(Transfer):
    """A message to another rank."""

    def __init__(self, memory: memoryview, destination: int, group: str, tag: int, dtype: str) -> None:
        super().__init__(memory, group, tag, dtype)
        self.destination = destination
        self.number = 0
        """The number by which it was offered; 0: it was not."""
        self.is_granted = False
        """Whether its bytes are leaving."""


class Receive(Transfer):
    """A message from another rank."""

    def __init__(self, memory: memoryview, sources: Sequence[int], group: str, tag: int, dtype: str) -> None:
        """`sources` are the ranks that it may come from: the first that does is taken."""
        super().__init__(memory, group, tag, dtype)
        self.sources = frozenset(sources)
        if len(self.sources) == 1:
            (self.source,) = self.sources


def describe(size: int, dtype: str, tag: int) -> str:
    """Return a message for people: `400 bytes of float32 with tag 7`."""
    return f"{size} bytes of {dtype} with tag {tag}"
