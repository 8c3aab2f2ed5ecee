"""Stragglers: the rank that was the last to submit an operation, and that the others have waited for."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """The key of an operation, the same on all ranks."""

    generation: int
    process_set: int
    name: str
    number: int


class LastSubmitters:
    """Remembers the last rank for each recent operation."""

    def __init__(self) -> None:
        self._new: dict[Key, tuple[int, int]] = {}
        self._old: dict[Key, tuple[int, int]] = {}

    def note(self, key: Key, rank: int, submitted: int) -> None:
        """Note when a rank submitted an operation."""
        known = self._new.get(key) or self._old.get(key)
        if known is None or submitted > known[0]:
            self._new[key] = submitted, rank

    def last(self, key: Key) -> tuple[int, int]:
        """Return the time of an operation's last submission, and its rank. (0, -1) if it is not known."""
        return self._new.get(key) or self._old.get(key) or (0, -1)

    def forget_old(self) -> None:
        """Forget what was noted before the previous call."""
        self._new, self._old = {}, self._new
