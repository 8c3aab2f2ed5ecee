"""Which rank was the last to submit an operation: the others have waited for it."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """An operation, in the words in which all ranks call it the same."""

    generation: int
    process_set: int
    name: str
    number: int


class LastSubmitters:
    """Remembers the last rank for each of the operations of late."""

    def __init__(self) -> None:
        self._new: dict[Key, tuple[int, int]] = {}
        self._old: dict[Key, tuple[int, int]] = {}

    def note(self, key: Key, rank: int, submitted: int) -> None:
        """A rank has submitted an operation then."""
        known = self._new.get(key) or self._old.get(key)
        if known is None or submitted > known[0]:
            self._new[key] = submitted, rank

    def last(self, key: Key) -> tuple[int, int]:
        """Return when an operation was submitted by the last rank, and which one that was; (0, -1): nobody knows."""
        return self._new.get(key) or self._old.get(key) or (0, -1)

    def forget_old(self) -> None:
        """Forget what was noted before the call before this one."""
        self._new, self._old = {}, self._new
