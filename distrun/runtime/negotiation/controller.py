"""The controller: which operations are ready, in which order they run, and what the ranks disagree about.

Pure policy: no clock, no memory, no messages of its own; the coordinator (rank 0) feeds it what the ranks have
submitted and carries its decisions to them. An operation of a process set is ready when every rank of the set has
submitted it under the same name, in whatever order each of them did. One controller orders the operations of all
process sets, so that no two ranks that share two sets ever meet them in different orders.

A rank sends a request in full once. The decision that first executes it gives it a cache id; from then on a rank
submits the cache id alone (the response cache). A cache id stands for exactly one request, so a rank that changes its
mind about a name (another shape, say) simply sends the new request in full, and comparing it with the others' needs no
invalidation.

Unnamed operations are matched by the order in which each rank submitted them to the process set.

Most of the time all ranks submit the same cache ids in the same order. As long as they do, these are kept as streams,
and whole stretches of them compared at once; the first difference moves what is left of the streams into slots, where
each operation is matched for itself, and there it goes on until nothing is waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distrun.runtime.negotiation.decisions import LONGEST_LIST, Decision, Define, Execute, Fail, Key
from distrun.runtime.operations.request import AGREED, Request, describe_field, first_difference, title
from distrun.runtime.topology import list_ranks

CACHE_CAPACITY = 1 << 16
"""Requests that get a cache id. The ones after that are sent in full every time, which is slower and as right."""


@dataclass
class _Slot:
    """An operation that some ranks have submitted and others not yet."""

    key: Key
    cache_id: int  # of the first request seen, -1 while it has none
    request: Request
    since: float
    mask: int = 0
    disagreement: dict[int, Request] = field(default_factory=dict)  # rank -> its request, where that differs
    sites: dict[int, str] = field(default_factory=dict)  # rank -> call site, where its request came in full


@dataclass
class _GivenUp:
    """An operation that was given up, until the ranks that had not submitted it have heard of it."""

    text: str
    awaited: int  # mask


@dataclass(frozen=True)
class Stall:
    """An operation that some ranks wait for, as the report shows it."""

    title: str
    process_set: int
    present: tuple[int, ...]
    missing: tuple[int, ...]
    waited: float
    site: str


class Controller:
    """The state of the negotiation, as rank 0 keeps it."""

    def __init__(self, members: Mapping[int, Iterable[int]], capacity: int = CACHE_CAPACITY) -> None:
        """`members` maps a process set's id to its ranks; 0 is the world."""
        self._required = {process_set: _mask(ranks) for process_set, ranks in members.items()}
        self._capacity = capacity
        self._requests: list[Request] = []
        self._cache_ids: dict[Request, int] = {}
        self._sites: dict[tuple[int, int], str] = {}  # (rank, cache id) -> call site in the rank's full request
        self._streams: dict[int, list[int]] = {rank: [] for rank in _ranks(self._required[0])}
        self._stream_since: dict[int, float] = {}
        self._unnamed_ids: set[int] = set()
        self._slots: dict[Key, _Slot] = {}
        self._given_up: dict[Key, _GivenUp] = {}
        self._unnamed: dict[tuple[int, int], int] = {}  # (process set, rank) -> unnamed operations submitted
        self._ready: list[int] = []
        self._decisions: list[Decision] = []

    # Events ---------------------------------------------------------------------------------------------------------

    def submit(self, rank: int, request: Request, site: str, now: float) -> None:
        """`rank` submitted a request in full."""
        self._drain_streams()
        cache_id = self._cache_ids.get(request, -1)
        if cache_id >= 0:
            self._sites[rank, cache_id] = site
        self._submit(rank, cache_id, request, site, now)

    def submit_ids(self, rank: int, cache_ids: Iterable[int], now: float) -> None:
        """`rank` submitted requests by their cache ids."""
        if self._slots or self._given_up:
            for cache_id in cache_ids:
                self._submit(rank, cache_id, self._requests[cache_id], "", now)
            return
        stream = self._streams[rank]
        if not stream:
            self._stream_since[rank] = now
        stream.extend(cache_ids)
        self._match_streams()

    def _match_streams(self) -> None:
        for stream in self._streams.values():
            if not stream:
                return
        first, *others = self._streams.values()
        length = min(len(first), *[len(stream) for stream in others]) if others else len(first)
        prefix = first[:length]
        for stream in others:
            if stream[:length] != prefix:
                self._drain_streams()
                return
        for stream in self._streams.values():
            del stream[:length]
        self._ready += prefix
        unnamed = sum(cache_id in self._unnamed_ids for cache_id in prefix) if self._unnamed_ids else 0
        if unnamed:
            for rank in self._streams:
                self._unnamed[0, rank] = self._unnamed.get((0, rank), 0) + unnamed

    def _drain_streams(self) -> None:
        """Move the operations that wait in the streams into slots."""
        for rank, stream in self._streams.items():
            if stream:
                cache_ids, self._streams[rank] = stream, []
                for cache_id in cache_ids:
                    self._submit(rank, cache_id, self._requests[cache_id], "", self._stream_since[rank])

    def _submit(self, rank: int, cache_id: int, request: Request, site: str, now: float) -> None:
        process_set = request.process_set
        key: Key
        if request.name is not None:
            key = (process_set, request.name)
        else:
            place = self._unnamed.get((process_set, rank), 0)
            self._unnamed[process_set, rank] = place + 1
            key = (process_set, place)
        if self._given_up and self._is_late(key, rank):
            return
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot(key, cache_id, request, now)
        elif (slot.cache_id != cache_id or cache_id < 0) and slot.request != request:
            slot.disagreement[rank] = request
        if site:
            slot.sites[rank] = site
        slot.mask |= 1 << rank
        if slot.mask == self._required[process_set]:
            del self._slots[key]
            self._decide(slot)

    def _is_late(self, key: Key, rank: int) -> bool:
        """Whether the others have given this operation up; the rank that comes late hears of it, and that is all.

        A rank that tries again is not late: it begins a new operation under the same key.
        """
        given_up = self._given_up.get(key)
        if given_up is None or not given_up.awaited >> rank & 1:
            return False
        given_up.awaited &= ~(1 << rank)
        if not given_up.awaited:
            del self._given_up[key]
        self._flush()
        self._decisions.append(Fail(key, given_up.text, (rank,), is_stall=True))
        return True

    def _decide(self, slot: _Slot) -> None:
        if slot.disagreement:
            self._flush()
            self._decisions.append(Fail(slot.key, self._disagreement(slot), tuple(_ranks(slot.mask))))
        elif slot.cache_id >= 0:
            self._ready.append(slot.cache_id)
        else:
            self._flush()
            self._decisions.append(Define(self._cache_id(slot), slot.request))

    def _cache_id(self, slot: _Slot) -> int:
        known = self._cache_ids.get(slot.request)
        if known is not None:
            return known
        if len(self._requests) >= self._capacity:
            return -1
        cache_id = len(self._requests)
        # Unnamed requests share a cache id by what they ask for; their place in the order tells them apart.
        self._requests.append(slot.request)
        self._cache_ids[slot.request] = cache_id
        if slot.request.name is None:
            self._unnamed_ids.add(cache_id)
        for rank, site in slot.sites.items():
            self._sites[rank, cache_id] = site
        return cache_id

    def _flush(self) -> None:
        for start in range(0, len(self._ready), LONGEST_LIST):
            self._decisions.append(Execute(self._ready[start : start + LONGEST_LIST]))
        self._ready = []

    def decisions(self) -> list[Decision]:
        """The decisions since the last call, in the order in which every rank must execute them."""
        self._flush()
        decisions, self._decisions = self._decisions, []
        return decisions

    # Trouble --------------------------------------------------------------------------------------------------------

    def _site(self, slot: _Slot, rank: int) -> str:
        """Where `rank` submitted the operation, as far as we know: a cache id does not say."""
        if rank in slot.sites:
            return slot.sites[rank]
        cache_id = self._cache_ids.get(slot.disagreement[rank], -1) if rank in slot.disagreement else slot.cache_id
        site = self._sites.get((rank, cache_id), "")
        return f"{site}, when first seen" if site and slot.request.name is None else site

    def _disagreement(self, slot: _Slot) -> str:
        asked = {rank: slot.disagreement.get(rank, slot.request) for rank in _ranks(slot.mask)}
        fields = [name for name in AGREED if len({getattr(request, name) for request in asked.values()}) > 1]
        place = first_difference(list(asked.values()))
        if place is not None and len(slot.request.shapes) > 1:  # of a large group, show the tensor that differs
            asked = {rank: request._replace(shapes=(request.shapes[place],)) for rank, request in asked.items()}
        groups: dict[str, list[int]] = {}
        for rank, request in asked.items():
            groups.setdefault(", ".join(f"{name} {describe_field(request, name)}" for name in fields), []).append(rank)
        sides = [
            f"{list_ranks(ranks)} asked for {values}{_at(self._site(slot, ranks[0]))}"
            for values, ranks in groups.items()
        ]
        which = (
            f" (of tensor {place} of {len(slot.request.shapes)})"
            if place is not None and len(slot.request.shapes) > 1
            else ""
        )
        return f"{_title(slot)}: the ranks disagree about {', '.join(fields)}{which}: {'; '.join(sides)}"

    def stalls(self, now: float, after: float) -> list[Stall]:
        """The operations that some but not all ranks submitted at least `after` seconds ago, oldest first."""
        self._drain_streams()
        stalls = [
            Stall(
                title=_title(slot),
                process_set=slot.key[0],
                present=tuple(_ranks(slot.mask)),
                missing=tuple(_ranks(self._required[slot.key[0]] & ~slot.mask)),
                waited=now - slot.since,
                site=self._site(slot, _ranks(slot.mask)[0]),
            )
            for slot in self._slots.values()
            if now - slot.since >= after
        ]
        return sorted(stalls, key=lambda stall: -stall.waited)

    def give_up(self, now: float, after: float, why: Mapping[str, str]) -> None:
        """Fail every operation that stalls this long; `why` maps its title to the text, also for late ranks."""
        self._drain_streams()
        for slot in [slot for slot in self._slots.values() if now - slot.since >= after]:
            text = why.get(_title(slot), f"{_title(slot)}: not all ranks submitted it in time")
            del self._slots[slot.key]
            self._given_up[slot.key] = _GivenUp(text, self._required[slot.key[0]] & ~slot.mask)
            self._flush()
            self._decisions.append(Fail(slot.key, text, tuple(_ranks(slot.mask)), is_stall=True))

    def backdate(self, rank: int, since: float) -> None:
        """The operations that `rank` has submitted wait since then, if that is longer than we know."""
        self._drain_streams()
        for slot in self._slots.values():
            if slot.mask >> rank & 1:
                slot.since = min(slot.since, since)

    @property
    def oldest(self) -> float | None:
        """The time at which the operation that has waited longest was first submitted; None when none waits."""
        times = [self._stream_since[rank] for rank, stream in self._streams.items() if stream]
        times += [slot.since for slot in self._slots.values()]
        return min(times, default=None)


def _title(slot: _Slot) -> str:
    place = slot.key[1] if isinstance(slot.key[1], int) else None
    return title(slot.request.kind, slot.request.name, place)


def _mask(ranks: Iterable[int]) -> int:
    mask = 0
    for rank in ranks:
        mask |= 1 << rank
    return mask


def _ranks(mask: int) -> list[int]:
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def _at(site: str) -> str:
    return f" at {site}" if site else ""
