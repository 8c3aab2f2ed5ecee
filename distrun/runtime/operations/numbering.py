"""Numberings: counters of a process that must agree on all ranks, in each generation of the world.

Operations are matched by name, and the names of things that a script creates without naming them contain a number: an
optimizer's, for example. All ranks run the same script, so they count alike. When a new generation begins, a rank that
survived continues inside `elastic.run`, while a new rank has run the script up to there. So the survivors' counters go
back to their values at that point. Things created before keep their numbers, which match the new rank's, and things
created inside are numbered again on all ranks.
"""

from __future__ import annotations

_all: list[Numbering] = []


class Numbering:
    """Counts things of one kind from 0. Created once per kind, when the module of the kind is imported."""

    def __init__(self) -> None:
        self._next = 0
        self._mark = 0
        _all.append(self)

    @property
    def count(self) -> int:
        """The number that the next thing will get."""
        return self._next

    def restart(self) -> None:
        """Count from 0 again, because nothing that was counted exists any longer."""
        self._next = 0

    def next(self) -> int:
        """Return the number of the next thing."""
        number = self._next
        self._next += 1
        return number


def mark() -> None:
    """Remember the state of all numberings. A numbering that is created later goes back to 0."""
    for numbering in _all:
        numbering._mark = numbering._next


def rewind() -> None:
    """Set all numberings back to their state at the last `mark`."""
    for numbering in _all:
        numbering._next = numbering._mark
