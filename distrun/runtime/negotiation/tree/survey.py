"""The survey: rank 0 has all leaders pass on what they hold, before it says which ranks are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

ANSWER_TIME = 1.0
"""Seconds that the leaders have for their answers."""
FRESH = 0.2
"""Seconds for which it need not be done again."""
_NEVER = float("-inf")


class Survey:
    """Rank 0's surveys, one at a time; see `Relay.survey` for the other side."""

    def __init__(self, children: Iterable[int], ask: Callable[[int], None]) -> None:
        """`children` are the leaders that answer; `ask` asks them, given the number of the survey."""
        self._children = frozenset(children)
        self._ask = ask
        self._number = 0
        self._awaited: set[int] = set()
        self.deadline = _NEVER
        """When it ends without the answers that are still missing."""
        self._ended = _NEVER

    def begin(self, now: float) -> None:
        """Ask, unless that is under way."""
        if self._awaited:
            return
        self._number += 1
        self._awaited = set(self._children)
        self.deadline = now + ANSWER_TIME
        self._ask(self._number)

    def answered(self, child: int, number: int, now: float) -> None:
        """A child has passed on what its subtree held."""
        if number == self._number and child in self._awaited:
            self._awaited.discard(child)
            if not self._awaited:
                self._ended = now

    def is_under_way(self, now: float) -> bool:
        """Whether answers are still to come."""
        if self._awaited and now >= self.deadline:
            self._awaited, self._ended = set(), now
        return bool(self._awaited)

    def is_fresh(self, now: float) -> bool:
        """Whether it has just ended."""
        return not self.is_under_way(now) and now <= self._ended + FRESH
