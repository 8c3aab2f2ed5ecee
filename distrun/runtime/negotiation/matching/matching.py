"""Matching: the operations of one process set that some of its ranks have submitted and others not yet.

As long as all ranks submit the same cache ids in the same order, these are kept as `Streams`, and whole stretches of
them compared at once. The first difference moves what waits there into slots, where each operation is matched for
itself; and there it goes on until nothing is waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.negotiation.matching.streams import Streams
from distrun.runtime.operations.request import DISSOLVE_PROCESS_SET, Request


@dataclass
class Slot:
    """An operation that some ranks have submitted and others not yet."""

    key: Key
    cache_id: int  # of the first request seen, -1 while it has none
    request: Request
    since: float
    count: int = 0  # ranks that have submitted it
    excused: int = 0  # ranks that have joined without having submitted it
    disagreement: dict[int, Request] = field(default_factory=dict)  # rank -> its request, where that differs
    sites: dict[int, str] = field(default_factory=dict)  # rank -> call site, where it is known
    _present: set[int] = field(default_factory=set)
    _further: list[Sequence[int]] = field(default_factory=list)  # ranks that are to be added to these

    def add(self, ranks: Sequence[int]) -> None:
        """These ranks have submitted it now; what this costs does not depend on their number."""
        self.count += len(ranks)
        self._further.append(ranks)

    @property
    def present(self) -> set[int]:
        """The ranks that have submitted it, which are looked at one by one only where it waits or fails."""
        if self._further:
            self._present.update(*self._further)
            self._further.clear()
        return self._present

    def request_of(self, rank: int) -> Request:
        """Return what a rank has asked for."""
        return self.disagreement.get(rank, self.request)


@dataclass
class GivenUp:
    """An operation that was given up, until the ranks that had not submitted it have heard of it."""

    text: str
    awaited: set[int]
    is_stall: bool


class Matching:
    """The operations that wait in one process set, and the ranks that have joined."""

    def __init__(self, ranks: Iterable[int], sources: Iterable[int] | None = None) -> None:
        """`sources` submit for the ranks, several of which may be one (see `Controller`); None: each for itself."""
        self.ranks = tuple(sorted(ranks))
        self.sources = frozenset(self.ranks if sources is None else sources)
        self.streams: Streams[int] = Streams(self.sources)
        self.slots: dict[Key, Slot] = {}
        self.given_up: dict[Key, GivenUp] = {}
        self.joined: dict[int, None] = {}
        """The ranks that have joined, in the order in which they did."""
        self.unnamed = 0
        """The unnamed operations that all ranks have submitted; some may have submitted more while there are slots."""
        self._unnamed_since: dict[int, int] = {}  # rank -> how many more

    @property
    def is_in_order(self) -> bool:
        """Whether the streams can be used: nothing has to be matched one by one."""
        return not (self.slots or self.given_up or self.joined)

    def unnamed_place(self, rank: int) -> int:
        """Return the place of a rank's next unnamed operation, which is submitted now."""
        since = self._unnamed_since.get(rank, 0)
        self._unnamed_since[rank] = since + 1
        return self.unnamed + since

    def slot(self, key: Key, ranks: Sequence[int], cache_id: int, request: Request, now: float) -> Slot:
        """Return the slot of an operation, which these ranks have submitted now."""
        slot = self.slots.get(key)
        if slot is None:
            slot = self.slots[key] = Slot(key, cache_id, request, now, excused=len(self.joined))
        elif (slot.cache_id != cache_id or cache_id < 0) and slot.request != request:
            slot.disagreement.update(dict.fromkeys(ranks, request))
        slot.add(ranks)
        return slot

    def is_complete(self, slot: Slot) -> bool:
        """Whether every rank has submitted an operation, or has joined."""
        return slot.count + slot.excused == len(self.ranks)

    def close(self, slot: Slot) -> None:
        """Take a slot out: it is decided."""
        del self.slots[slot.key]
        self._settle()

    def _settle(self) -> None:
        """Once nothing waits, all ranks have submitted as many unnamed operations as the foremost of them."""
        if self._unnamed_since and not (self.slots or self.given_up):
            self.unnamed += max(self._unnamed_since.values())
            self._unnamed_since.clear()

    def missing(self, slot: Slot) -> list[int]:
        """Return the ranks that an operation waits for."""
        return [rank for rank in self.ranks if rank not in slot.present and rank not in self.joined]

    def excused_from(self, slot: Slot) -> list[int]:
        """Return the ranks that have joined without having submitted an operation."""
        return sorted(rank for rank in self.joined if rank not in slot.present)

    def give_up(self, slot: Slot, text: str, is_stall: bool = True) -> None:
        """Take a slot out, and remember for the ranks that have not submitted it why."""
        missing = self.missing(slot)
        if missing:
            self.given_up[slot.key] = GivenUp(text, set(missing), is_stall)
        self.close(slot)

    def told_late(self, key: Key, rank: int) -> GivenUp | None:
        """Return why an operation was given up before this rank came; it is told so once.

        A rank that tries again is not late: it begins a new operation under the same key.
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
        """A rank submits nothing more until all have joined; yields the slots that are complete by that."""
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
        """The time at which the operation that has waited longest was first submitted; None when none waits."""
        times = [slot.since for slot in self.slots.values()]
        oldest = self.streams.oldest
        return min(times, default=oldest) if oldest is None else min([oldest, *times])


class Formation(Matching):
    """The process sets that their own ranks are about to form, and those that they have finished with.

    What a set of the latter kind holds is freed when the next one is formed. Then all ranks of the job take part
    anyway; at any other time one of them may have left, with nothing more to do.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        super().__init__(ranks)
        self._finished: dict[int, set[int]] = {}  # number of a set -> ranks that have finished with it
        self._dissolutions: list[Request] = []

    def missing(self, slot: Slot) -> list[int]:
        (ranks,) = slot.request.shapes
        return [rank for rank in ranks if rank not in slot.present]

    def finished(self, rank: int, number: int, members: Collection[int]) -> None:
        """A rank has finished with the set of this number."""
        finished = self._finished.setdefault(number, set())
        finished.add(rank)
        if len(finished) == len(members):
            del self._finished[number]
            self._dissolutions.append(Request(DISSOLVE_PROCESS_SET, str(number), "int64", ((number,),)))

    def take_dissolutions(self) -> list[Request]:
        """Take out the sets with which all their ranks have finished, as what the ranks are to execute."""
        taken, self._dissolutions = self._dissolutions, []
        return taken
