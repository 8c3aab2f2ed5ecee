"""Streams: what the ranks of a process set submit by cache ids, while all of them do so in one order.

Training repeats itself, so most of the time all ranks submit the same operations in the same order. Then nothing has to
be matched one by one. The first rank that reaches a place in the order defines what belongs there, every later rank is
compared with it, and an operation is ready when the last rank has passed its place. This is known from the number of
ranks at each place, at a cost per submission that does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Token = TypeVar("Token", bound=Hashable)
"""A cache id, or anything else that stands for an operation."""


class Streams(Generic[Token]):
    """One order of cache ids, and the place that each rank has reached in it."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._places = dict.fromkeys(ranks, 0)
        self._ranks_at = {0: len(self._places)}  # by place: the number of ranks that are exactly there
        self._start = 0  # the place of the slowest rank
        self._order: list[Token] = []  # the cache ids from `_start` on
        self._since: list[float] = []  # when the first rank reached each of these places

    def submit(self, rank: int, cache_ids: list[Token], now: float) -> list[Token] | None:
        """Note what a rank submits next.

        Returns:
            The cache ids that are ready, in order, or None, with nothing noted, if the rank has left the common order.
        """
        place, order = self._places[rank], self._order
        index = place - self._start
        count = len(cache_ids)
        there = order[index : index + count]
        if there != cache_ids:
            if there != cache_ids[: len(there)]:
                return None
            order += cache_ids[len(there) :]
            self._since += [now] * (count - len(there))
        self._places[rank] = end = place + count
        ranks_at = self._ranks_at
        ranks_at[end] = ranks_at.get(end, 0) + 1
        if ranks_at[place] > 1:
            ranks_at[place] -= 1
            return []
        del ranks_at[place]
        return self._advance() if place == self._start else []

    def _advance(self) -> list[Token]:
        """Remove and return the cache ids that all ranks have passed. No rank is at the start any longer."""
        start, ranks_at = self._start, self._ranks_at
        while start not in ranks_at:
            start += 1
        count = start - self._start
        ready = self._order[:count]
        del self._order[:count], self._since[:count]
        self._start = start
        return ready

    @property
    def oldest(self) -> float | None:
        """When the operation that has waited longest was first submitted, or None if none waits."""
        return self._since[0] if self._since else None

    def drain(self) -> Iterator[tuple[int, Token, float]]:
        """Remove what waits, and yield it rank by rank: the rank, a cache id, and the time since when it has waited."""
        order, since, start = self._order, self._since, self._start
        places = self._places
        self._places = dict.fromkeys(places, 0)
        self._ranks_at = {0: len(places)}
        self._start, self._order, self._since = 0, [], []
        for rank, place in places.items():
            for index in range(place - start):
                yield rank, order[index], since[index]
