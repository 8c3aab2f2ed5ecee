"""Matching: the operations of one process set that some of its ranks have submitted and others have not.

While all ranks submit the same cache ids in the same order, the submissions are kept as `Streams`, and long stretches
of them are compared at once. The first difference moves what waits there into slots, where each operation is matched by
itself. This continues until no slot waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.matching.streams import Streams
from distrun.runtime.operations.request import DISSOLVE_PROCESS_SET, Request


@dataclass
class Slot:
    """An operation that some ranks have submitted and others have not."""

    key: Key
    cache_id: int  # of the first request seen, or -1 while it has none
    request: Request
    since: float
    count: int = 0  # the number of ranks that have submitted it
    excused: int = 0  # the number of ranks that have joined without having submitted it
    disagreement: dict[int, Request] = field(default_factory=dict)  # the different requests, by rank
    sites: dict[int, str] = field(default_factory=dict)  # the known call sites, by rank
    _present: set[int] = field(default_factory=set)
    _further: list[Sequence[int]] = field(default_factory=list)  # ranks to be added to `_present`

    def add(self, ranks: Sequence[int]) -> None:
        """Note that these ranks have submitted it now. The cost does not depend on the number of ranks."""
        self.count += len(ranks)
        self._further.append(ranks)

    @property
    def present(self) -> set[int]:
        """The ranks that have submitted it. They are enumerated only for an operation that waits or fails."""
        if self._further:
            self._present.update(*self._further)
            self._further.clear()
        return self._present

    def request_of(self, rank: int) -> Request:
        """Return a rank's request."""
        return self.disagreement.get(rank, self.request)


@dataclass
class GivenUp:
    """An operation that was given up, until the ranks that had not submitted it have received the error."""

    text: str
    awaited: set[int]
    is_stall: bool


class Matching:
    """The operations that wait in one process set, and the ranks that have joined it."""

    def __init__(self, ranks: Iterable[int], sources: Iterable[int] | None = None) -> None:
        """`sources` submit for the ranks, and a source may stand for several (see `Controller`). None: the ranks do."""
        self.ranks = tuple(sorted(ranks))
        self.sources = frozenset(self.ranks if sources is None else sources)
        self.streams: Streams[int] = Streams(self.sources)
        self.slots: dict[Key, Slot] = {}
        self.given_up: dict[Key, GivenUp] = {}
        self.joined: dict[int, None] = {}
        """The ranks that have joined, in the order of joining."""
        self.unnamed = 0
        """The number of unnamed operations that all ranks have submitted. While slots wait, some may be ahead of it."""
        self._unnamed_since: dict[int, int] = {}  # by rank: the number of further ones

    @property
    def is_in_order(self) -> bool:
        """Whether the streams can be used, because nothing has to be matched one by one."""
        return not (self.slots or self.given_up or self.joined)

    def unnamed_place(self, rank: int) -> int:
        """Return the number of a rank's next unnamed operation, which is submitted now."""
        since = self._unnamed_since.get(rank, 0)
        self._unnamed_since[rank] = since + 1
        return self.unnamed + since

    def count_unnamed(self) -> None:
        """Note that all ranks have submitted an unnamed operation that needs no decision."""
        if self.is_in_order:
            self.unnamed += 1
        else:
            for rank in self.ranks:
                self.unnamed_place(rank)

    def slot(self, key: Key, ranks: Sequence[int], cache_id: int, request: Request, now: float) -> Slot:
        """Return the slot of an operation, after noting that these ranks have submitted it now."""
        slot = self.slots.get(key)
        if slot is None:
            slot = self.slots[key] = Slot(key, cache_id, request, now, excused=len(self.joined))
        elif (slot.cache_id != cache_id or cache_id < 0) and slot.request != request:
            slot.disagreement.update(dict.fromkeys(ranks, request))
        slot.add(ranks)
        return slot

    def is_complete(self, slot: Slot) -> bool:
        """Whether every rank has submitted an operation or has joined."""
        return slot.count + slot.excused == len(self.ranks)

    def close(self, slot: Slot) -> None:
        """Remove a slot, which is decided."""
        del self.slots[slot.key]
        self._settle()

    def _settle(self) -> None:
        """Once nothing waits, set the count of unnamed operations of all ranks to the highest count of any rank."""
        if self._unnamed_since and not (self.slots or self.given_up):
            self.unnamed += max(self._unnamed_since.values())
            self._unnamed_since.clear()

    def missing(self, slot: Slot) -> list[int]:
        """Return the ranks that an operation waits for."""
        return [rank for rank in self.ranks if rank not in slot.present and rank not in self.joined]

    def excused_from(self, slot: Slot) -> list[int]:
        """Return the ranks that have joined without having submitted an operation."""
        return sorted(rank for rank in self.joined if rank not in slot.present)

    def give_up(self, slot: Slot, text: str, is_stall: bool) -> None:
        """Remove a slot, and remember the reason for the ranks that have not submitted it."""
        missing = self.missing(slot)
        if missing:
            self.given_up[slot.key] = GivenUp(text, set(missing), is_stall)
        self.close(slot)

    def told_late(self, key: Key, rank: int) -> GivenUp | None:
        """Return why an operation was given up before this rank submitted it, or None. A rank gets the reason only
        once.

        A rank that tries again is not late: it begins a new operation with the same key.
        """
        given_up = self.given_up.get(key)
        if given_up is None or rank not in given_up.awaited:
            return None
        self._await_no_longer(key, rank)
        return given_up

    def _await_no_longer(self, key: Key, rank: int) -> None:
        given_up = self.given_up[key]
        given_up.awaited.discard(rank)
        if not given_up.awaited:
            del self.given_up[key]
            self._settle()

    def join(self, rank: int) -> Iterator[Slot]:
        """Note that a rank submits nothing until all have joined. Yields the slots that this completes."""
        self.joined[rank] = None
        for key in list(self.given_up):
            self._await_no_longer(key, rank)
        for slot in list(self.slots.values()):
            if rank not in slot.present:
                slot.excused += 1
                if self.is_complete(slot):
                    yield slot

    @property
    def oldest(self) -> float | None:
        """When the operation that has waited longest was first submitted, or None if none waits."""
        oldest = self.streams.oldest
        if not self.slots:
            return oldest
        times = [slot.since for slot in self.slots.values()]
        return min(times) if oldest is None else min(oldest, *times)


class Formation(Matching):
    """The process sets that their own ranks are about to form, and the sets that they have finished with.

    The resources of a finished set are freed when the next set is formed, since all ranks of the job take part in that
    anyway. At any other time a rank may have left, because it has nothing more to do.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        super().__init__(ranks)
        self._finished: dict[int, set[int]] = {}  # by the number of a set: the ranks that have finished with it
        self._dissolutions: list[Request] = []

    def missing(self, slot: Slot) -> list[int]:
        (ranks,) = slot.request.shapes
        return [rank for rank in ranks if rank not in slot.present]

    def finished(self, rank: int, number: int, members: Collection[int]) -> None:
        """Note that a rank has finished with the set of this number."""
        finished = self._finished.setdefault(number, set())
        finished.add(rank)
        if len(finished) == len(members):
            del self._finished[number]
            self._dissolutions.append(Request(DISSOLVE_PROCESS_SET, str(number), "int64", ((number,),)))

    def take_dissolutions(self) -> list[Request]:
        """Return the requests to dissolve the sets that all their ranks have finished with, and forget them."""
        taken, self._dissolutions = self._dissolutions, []
        return taken
