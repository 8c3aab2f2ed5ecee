"""Numberings: what is counted per process and must be counted alike on all ranks, in each generation of the world.

Operations are matched by name, and names of things that a script makes without naming them hold a number: the
optimizer's, say. All ranks run the same script, so all count alike. When a new generation begins, a rank that was there
before goes on inside `elastic.run`, while a newcomer has run the script up to there. So the survivors' counters go back
to where they were when they came there: what was made before keeps its number, which is the one that the newcomer's has
too, and what is made inside is numbered again on all of them.
"""

from __future__ import annotations

_all: list[Numbering] = []


class Numbering:
    """Counts things of one kind from 0. To be made once per kind, when its module is imported."""

    def __init__(self) -> None:
        self._next = 0
        self._mark = 0
        _all.append(self)

    @property
    def count(self) -> int:
        """The number that the next thing will have."""
        return self._next

    def restart(self) -> None:
        """Count from 0 again: all that was counted is gone."""
        self._next = 0

    def next(self) -> int:
        """Return the number of the next thing."""
        number = self._next
        self._next += 1
        return number


def mark() -> None:
    """Remember where all numberings are. One that is made later goes back to 0."""
    for numbering in _all:
        numbering._mark = numbering._next


def rewind() -> None:
    """Set all numberings back to where they were at the last `mark`."""
    for numbering in _all:
        numbering._next = numbering._mark
