"""The survey: rank 0 makes all leaders send up what they hold back, before it reports which ranks are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

ANSWER_TIME = 1.0
"""Seconds that the leaders have for their answers."""
FRESH = 0.2
"""Seconds after a survey for which it need not be repeated."""
_NEVER = float("-inf")


class Survey:
    """Rank 0's surveys, one at a time. `Relay.survey` is the other side."""

    def __init__(self, children: Iterable[int], ask: Callable[[int], None]) -> None:
        """`children` are the leaders that answer. `ask` asks them, given the number of the survey."""
        self._children = frozenset(children)
        self._ask = ask
        self._number = 0
        self._awaited: set[int] = set()
        self.deadline = _NEVER
        """When the survey ends even if answers are missing."""
        self._ended = _NEVER

    def begin(self, now: float) -> None:
        """Ask the children, unless a survey is under way."""
        if self._awaited:
            return
        self._number += 1
        self._awaited = set(self._children)
        self.deadline = now + ANSWER_TIME
        self._ask(self._number)

    def answered(self, child: int, number: int, now: float) -> None:
        """Note that a child has sent up what its subtree held back."""
        if number == self._number and child in self._awaited:
            self._awaited.discard(child)
            if not self._awaited:
                self._ended = now

    def is_under_way(self, now: float) -> bool:
        """Whether answers are missing and not overdue."""
        if self._awaited and now >= self.deadline:
            self._awaited, self._ended = set(), now
        return bool(self._awaited)

    def is_fresh(self, now: float) -> bool:
        """Whether a survey has ended a moment ago."""
        return not self.is_under_way(now) and now <= self._ended + FRESH
