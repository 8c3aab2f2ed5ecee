"""Subgroups: some of the ranks of a host, which exchange words and small arrays without the others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from distrun.runtime.operations.timeouts import Timeouts
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.local_ranks import LocalRanks
from distrun.runtime.transport.shared_memory.segment import LINE


class LocalSubgroup(LocalRanks):
    """Some ranks of the local group, including this one.

    They use an area of their own in each segment, because a slow rank may still be reading what was shown to the whole
    group.
    """

    def __init__(self, whole: LocalGroup, ranks: Sequence[int], area: int) -> None:
        """`area` is the number of the area, the same on all `ranks`. This rank's area must be all zeros."""
        places = [whole.ranks.index(rank) for rank in ranks]
        own = places.index(whole.own)
        segments = [whole.segments[place] for place in places]
        bells = [whole.bells[place] for place in places]
        super().__init__(own, ranks, segments, whole.heap, bells, whole.timeouts, whole.network)
        layout = self.mine.layout
        start = layout.area(area)
        stage = start + layout.area_words
        self._open([segment.memory(start, stage).cast("q") for segment in segments], 0, LINE, stage)
        self._whole = whole
        self._places = places
        self._needed = [place for place in places if place != whole.own]

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory that this rank uses for the subgroup."""
        return self.mine.layout.area_size

    def wait(
        self,
        ready: Callable[[], bool],
        what: Callable[[], str],
        until: float | None = None,
        timeouts: Timeouts | None = None,
    ) -> bool:
        return self._whole.wait(ready, what, until, timeouts, needed=self._needed)

    def describe(self, indices: Sequence[int]) -> str:
        return self._whole.describe([self._places[index] for index in indices])


class LocalSubgroups:
    """The subgroups of a host, on one of its ranks.

    All ranks of the host add and remove the same subgroups in the same order, including those that they do not belong
    to, so all of them give a subgroup the same area. Process sets with ranks on several hosts may have the same ranks
    on this one. They share a subgroup, because their ranks execute all operations in the same order.
    """

    def __init__(self, whole: LocalGroup) -> None:
        self._whole = whole
        self._areas: dict[tuple[int, ...], int] = {}
        self._users: Counter[tuple[int, ...]] = Counter()
        self._made: dict[tuple[int, ...], LocalSubgroup] = {}

    def add(self, ranks: Sequence[int]) -> LocalRanks | None:
        """Return the group of `ranks` of this host, given in rising order, or None if this rank is not one of them.

        It may be used once all its ranks have returned from this call.
        """
        key = tuple(ranks)
        whole = self._whole
        if key == whole.ranks:
            return whole
        self._users[key] += 1
        if key not in self._areas:
            taken = set(self._areas.values())
            self._areas[key] = next(area for area in itertools.count() if area not in taken)
            if whole.ranks[whole.own] in key:
                whole.area_bytes += whole.mine.layout.area_size
                self._made[key] = LocalSubgroup(whole, key, self._areas[key])
        return self._made.get(key)

    def remove(self, ranks: Sequence[int]) -> None:
        """Release a group that was added. All its ranks must have finished with it."""
        key = tuple(ranks)
        if key == self._whole.ranks:
            return
        self._users[key] -= 1
        if self._users[key]:
            return
        del self._users[key]
        area = self._areas.pop(key)
        if self._made.pop(key, None) is not None:
            layout = self._whole.mine.layout
            self._whole.mine.free(layout.area(area), layout.area_size)  # zeros, for the next user of the area
            self._whole.area_bytes -= layout.area_size
