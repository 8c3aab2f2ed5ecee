"""The controller: which operations are ready, in what order they run, and what the ranks disagree about.

Pure policy: no clock, no memory, no messages of its own. The coordinator (rank 0) gives it the ranks' submissions, and
sends its decisions to them. An operation of a process set is ready when every rank of the set has submitted it under
the same name, in any order, or has joined. One controller orders the operations of all process sets, so two ranks that
share two sets never execute their operations in different orders.

A rank sends a request in full once. The decision that first executes it gives it a cache id. Later, a rank submits only
the cache id (the response cache). A cache id stands for exactly one request. So a rank that changes the meaning of a
name (another shape, for example) sends the new request in full, and comparing it with the other ranks' requests needs
no invalidation.

Unnamed operations are matched by the order of each rank's submissions to the process set.

The cost of a submission does not depend on the number of ranks, except for decisions that fail.

A rank submits for itself, or a *source* submits for many ranks that all submit the same (see `tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from distrun.contract.settings import REQUESTS
from distrun.runtime.negotiation.decisions import AllJoined, Decision, Define, Fail, Key
from distrun.runtime.negotiation.joining import objection, ranks_that_count
from distrun.runtime.negotiation.matching.decision_queue import DecisionQueue
from distrun.runtime.negotiation.matching.disagreement import describe_disagreement, slot_title
from distrun.runtime.negotiation.matching.matching import Formation, Matching, Slot
from distrun.runtime.operations.request import DISSOLVE_PROCESS_SET, FORM_PROCESS_SET, JOIN, Request


@dataclass(frozen=True)
class Stall:
    """An operation that some ranks wait for, as a report shows it."""

    key: Key
    title: str
    present: tuple[int, ...]
    missing: tuple[int, ...]
    waited: float
    site: str


class Controller:
    """The state of the negotiation on rank 0."""

    def __init__(
        self,
        members: Mapping[int, Iterable[int]],
        capacity: int = REQUESTS,
        sources: Iterable[int] | None = None,
        ranks_of: Callable[[int], Sequence[int]] = lambda source: (source,),
    ) -> None:
        """`members` maps a process set's id to its ranks, and 0 is the world. `capacity` requests get a cache id. The
        `sources` submit to the world while all submit the same (None: the ranks themselves), and `ranks_of` returns the
        ranks of a source, also of one that is not in `sources`."""
        self._matchings = {
            process_set: Matching(ranks, None if process_set else sources) for process_set, ranks in members.items()
        }
        # Those among all where an operation may wait: looking for one takes no longer with many idle process sets.
        self._active: dict[Matching, None] = {}
        self._ranks_of = ranks_of
        self._formation = Formation(self._matchings[0].ranks)
        self._capacity = capacity
        self._requests: list[Request] = []
        self._cache_ids: dict[Request, int] = {}
        self._unnamed_ids: set[int] = set()
        self._sites: dict[int, str] = {}  # cache id -> call site in the first full request
        self._odd_sites: dict[tuple[int, int], str] = {}  # (rank, cache id) -> call site, where that differs
        self._queue = DecisionQueue()
        self.questions = self._queue.questions
        """Ranks to be asked where they submitted an operation, see `site_told`. The asking code empties the list."""

    # Process sets ---------------------------------------------------------------------------------------------------

    def add_process_set(self, process_set: int, ranks: Iterable[int]) -> None:
        """Negotiate for another process set, too."""
        self._matchings[process_set] = Matching(ranks)

    def remove_process_set(self, process_set: int) -> None:
        """Remove a process set. No rank submits anything to it any longer."""
        self._active.pop(self._matchings.pop(process_set), None)

    def members(self, process_set: int) -> tuple[int, ...]:
        """Return the ranks of a process set."""
        return self._matchings[process_set].ranks

    def request(self, cache_id: int) -> Request:
        """Return the request for a cache id."""
        return self._requests[cache_id]

    # Events ---------------------------------------------------------------------------------------------------------

    def submit(self, source: int, request: Request, site: str, now: float) -> None:
        """Handle a request that a source submitted in full."""
        if request.kind == FORM_PROCESS_SET:
            self._form(source, request, site, now)
            return
        if request.kind == DISSOLVE_PROCESS_SET:
            ((number,),) = request.shapes
            self._formation.finished(source, number, self.members(number))
            return
        matching = self._matchings[request.process_set]
        self._active[matching] = None
        self._drain_streams(matching)
        if request.kind == JOIN:
            self._join(matching, source, request.process_set)
            return
        cache_id = self._cache_ids.get(request, -1)
        if cache_id >= 0:
            self._note_site(self._ranks_of(source)[0], cache_id, site)
        self._submit(matching, source, cache_id, request, site, now)

    def submit_ids(self, source: int, cache_ids: list[int], now: float) -> None:
        """Handle requests that a source submitted by their cache ids."""
        if len(self._matchings) == 1:
            self._submit_ids(0, source, cache_ids, now)
            return
        for process_set, part in groupby(cache_ids, lambda cache_id: self._requests[cache_id].process_set):
            self._submit_ids(process_set, source, list(part), now)

    def count_crossed(self, cache_id: int) -> None:
        """Note that all ranks have submitted a request that needs no decision."""
        if cache_id in self._unnamed_ids:
            self._matchings[self._requests[cache_id].process_set].count_unnamed()

    def _submit_ids(self, process_set: int, source: int, cache_ids: list[int], now: float) -> None:
        matching = self._matchings[process_set]
        self._active[matching] = None
        if matching.is_in_order and source in matching.sources:
            ready = matching.streams.submit(source, cache_ids, now)
            if ready is not None:
                if ready:
                    self._queue.execute(process_set, ready)
                    if self._unnamed_ids:
                        matching.unnamed += sum(cache_id in self._unnamed_ids for cache_id in ready)
                return
        self._drain_streams(matching)
        for cache_id in cache_ids:
            self._submit(matching, source, cache_id, self._requests[cache_id], None, now)

    def _drain_streams(self, matching: Matching) -> None:
        """Move the operations that wait in the streams into slots, where each is matched by itself."""
        if matching.streams.oldest is not None:
            for source, cache_id, since in matching.streams.drain():
                self._submit(matching, source, cache_id, self._requests[cache_id], None, since)

    def _submit(
        self, matching: Matching, source: int, cache_id: int, request: Request, site: str | None, now: float
    ) -> None:
        ranks, name = self._ranks_of(source), request.name
        if name is not None:
            self._match(matching, (request.process_set, name), ranks, cache_id, request, site, now)
            return
        for rank in ranks:
            key = request.process_set, matching.unnamed_place(rank)
            self._match(matching, key, (rank,), cache_id, request, site, now)

    def _match(
        self,
        matching: Matching,
        key: Key,
        ranks: Sequence[int],
        cache_id: int,
        request: Request,
        site: str | None,
        now: float,
    ) -> None:
        if matching.given_up:
            ranks = self._in_time(matching, key, ranks)
            if not ranks:
                return
        slot = matching.slot(key, ranks, cache_id, request, now)
        if site is not None:
            slot.sites[ranks[0]] = site
        if matching.is_complete(slot):
            self._complete(matching, slot)

    def _in_time(self, matching: Matching, key: Key, ranks: Sequence[int]) -> list[int]:
        """Fail an operation that was given up on the `ranks` that submit it only now. Returns the other ranks."""
        others = []
        for rank in ranks:
            given_up = matching.told_late(key, rank)
            if given_up is None:
                others.append(rank)
            else:
                self._queue.add(Fail(key, given_up.text, (rank,), given_up.is_stall))
        return others

    def _form(self, rank: int, request: Request, site: str, now: float) -> None:
        """Handle a rank's request for a process set that its own ranks form."""
        formation = self._formation
        self._active[formation] = None
        key: Key = (0, request.name or "")
        if not self._in_time(formation, key, (rank,)):
            return
        slot = formation.slot(key, (rank,), -1, request, now)
        slot.sites[rank] = site
        if slot.disagreement:  # the ranks disagree about the members, so nobody knows who else would have to come
            self._give_up(formation, slot, describe_disagreement(slot, lambda rank: slot.sites[rank]), is_stall=False)
            return
        if formation.missing(slot):
            return
        formation.close(slot)
        for dissolution in formation.take_dissolutions():
            self._queue.add(Define(-1, dissolution, 1))
        self._queue.add(Define(-1, slot.request, slot.count))

    def _join(self, matching: Matching, rank: int, process_set: int) -> None:
        for slot in matching.join(rank):
            self._complete(matching, slot)
        if len(matching.joined) == len(matching.ranks):
            matching.joined.clear()
            self._queue.add(AllJoined(process_set, rank, matching.unnamed))

    # Decisions ------------------------------------------------------------------------------------------------------

    def _complete(self, matching: Matching, slot: Slot) -> None:
        """Decide about an operation that every rank has submitted, except the ranks that have joined."""
        matching.close(slot)
        taking_part = ranks_that_count(slot)
        if slot.disagreement:
            self._queue.fail(slot)
            return
        if taking_part:
            why = objection(slot, matching.excused_from(slot))
            if why:
                self._queue.add(Fail(slot.key, f"{slot_title(slot)}: {why}", tuple(sorted(slot.present))))
                return
        if slot.cache_id >= 0:
            self._queue.execute(slot.key[0], [slot.cache_id], taking_part)
        else:
            self._queue.add(Define(self._cache_id(slot), slot.request, taking_part))

    def _cache_id(self, slot: Slot) -> int:
        known = self._cache_ids.get(slot.request)
        if known is not None:
            return known
        if len(self._requests) >= self._capacity:
            return -1
        cache_id = len(self._requests)
        # Unnamed requests for the same thing share a cache id. Their place in the order distinguishes them.
        self._requests.append(slot.request)
        self._cache_ids[slot.request] = cache_id
        if slot.request.name is None:
            self._unnamed_ids.add(cache_id)
        for rank, site in slot.sites.items():
            self._note_site(rank, cache_id, site)
        return cache_id

    def decisions(self) -> list[Decision]:
        """Return the decisions since the last call, in the order that every rank must execute them in.

        Decisions behind a disagreement wait until the ranks that were asked about it have answered.
        """
        return self._queue.take(self._site)

    # Trouble --------------------------------------------------------------------------------------------------------

    def site_told(self, rank: int, key: Key, site: str) -> None:
        """See `DecisionQueue.site_told`."""
        self._queue.site_told(rank, key, site)

    def _note_site(self, rank: int, cache_id: int, site: str) -> None:
        if self._sites.setdefault(cache_id, site) != site:
            self._odd_sites[rank, cache_id] = site

    def _site(self, slot: Slot, rank: int) -> str:
        """The call site of `rank`, as far as it is known. A cache id comes without one, so it may be an earlier one."""
        site = slot.sites.get(rank, "")
        if site:
            return site
        cache_id = self._cache_ids.get(slot.request_of(rank), -1)
        site = self._odd_sites.get((rank, cache_id)) or self._sites.get(cache_id, "")
        return f"{site}, when first seen" if site else site

    def stalls(self, now: float, after: float) -> list[Stall]:
        """Return the operations that some but not all ranks submitted at least `after` seconds ago, oldest first."""
        stalls = [
            Stall(
                key=slot.key,
                title=slot_title(slot),
                present=tuple(sorted(slot.present)),
                missing=tuple(matching.missing(slot)),
                waited=now - slot.since,
                site=self._site(slot, min(slot.present)),
            )
            for matching, slot in self._waiting()
            if now - slot.since >= after
        ]
        return sorted(stalls, key=lambda stall: -stall.waited)

    def give_up(self, now: float, after: float, why: Mapping[str, str]) -> None:
        """Fail every operation that has stalled for `after` seconds. `why` maps titles to texts, also of late ranks."""
        for matching, slot in self._waiting():
            if now - slot.since >= after:
                text = why.get(slot_title(slot), f"{slot_title(slot)}: not all ranks submitted it in time")
                self._give_up(matching, slot, text)

    def give_up_one(self, key: Key, text: str) -> None:
        """Fail an operation that waits for ranks, with this text, which these ranks get, too, when they submit it."""
        for matching, slot in self._waiting():
            if slot.key == key:
                self._give_up(matching, slot, text)

    def _give_up(self, matching: Matching, slot: Slot, text: str, is_stall: bool = True) -> None:
        matching.give_up(slot, text, is_stall)
        self._queue.add(Fail(slot.key, text, tuple(sorted(slot.present)), is_stall))

    def _waiting(self) -> list[tuple[Matching, Slot]]:
        waiting = []
        for matching in self._active:
            self._drain_streams(matching)
            waiting += [(matching, slot) for slot in matching.slots.values()]
        return waiting

    def backdate(self, rank: int, since: float) -> None:
        """Note that the operations of `rank` have waited since `since`, if that is longer than known so far."""
        for _, slot in self._waiting():
            if rank in slot.present:
                slot.since = min(slot.since, since)

    @property
    def oldest(self) -> float | None:
        """When the operation that has waited longest was first submitted, or None if none waits."""
        oldest = None
        for matching in list(self._active):
            since = matching.oldest
            if since is None:
                del self._active[matching]
            elif oldest is None or since < oldest:
                oldest = since
        return oldest
