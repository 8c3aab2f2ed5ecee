"""Stragglers: which ranks the others wait for, and why they are late. Pure.

A rank is named as a straggler when it has cost more than a tenth of the time in four of the last five seconds. That is
soon enough to watch it happen, and a pause of a second, which any machine has at times, does not count. It "stands"
when it has been named for half a minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from distrun.runner.observation.model.seconds import RankSecond, Second
from distrun.tracing.layout import BACKWARD, FORWARD, INPUT, OPTIMIZER, OTHER, SAVING

SHARE = 0.10
"""The share of the time above which a rank's cost makes it a straggler."""
_CALM = 0.07
"""The share of the time below which a straggler is dropped. It is lower than SHARE, so that names do not flicker."""
_LOOKED_AT, _OF_THEM = 5, 4
"""The number of last seconds, and the number of these that must be above SHARE."""
STANDS_AFTER = 30.0

COMPUTE = (FORWARD, BACKWARD)
_CAUSES = {
    INPUT: "it waits for its input",
    FORWARD: "its forward and backward passes take longer",
    OPTIMIZER: "updating its weights takes longer",
    SAVING: "it writes checkpoints",
    OTHER: "its own code takes longer",
}


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for."""

    rank: int
    host: str
    share: float
    """The share of the time that it costs the others."""
    per_step: float | None
    """Seconds per step that it costs the others. None = steps are unknown."""
    cause: str
    """The reason as a clause: `it waits for its input`. Empty = unknown."""
    stands: bool = False
    """Whether it was first named at least half a minute ago."""

    @property
    def sentence(self) -> str:
        """A sentence without a full stop: `rank 3 on h2 costs every step 19 ms (16 %): it waits for its input`."""
        share = f"{100 * self.share:.0f} %"
        if self.per_step is None:
            costs = f"costs the others {share} of their time"
        else:
            costs = f"costs every step {milliseconds(self.per_step)} ({share})"
        return f"rank {self.rank} on {self.host} {costs}{f': {self.cause}' if self.cause else ''}"


def milliseconds(seconds: float) -> str:
    """Return a time as text: `0.42 ms`, `19 ms`, `1.3 s`."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2g} ms"


def total(seconds: Iterable[Second]) -> dict[int, RankSecond]:
    """Return the sum of seconds, by rank."""
    sums: dict[int, RankSecond] = {}
    for second in seconds:
        for rank, part in second.ranks.items():
            sums.setdefault(rank, RankSecond()).add(part)
    return sums


def found(sums: Mapping[int, RankSecond], hosts: Mapping[int, str], least: float = SHARE) -> list[Straggler]:
    """Return the ranks whose cost exceeds the share `least` of the time, the costliest first."""
    late = {rank: part.cost / part.length for rank, part in sums.items() if part.length}
    stragglers = []
    for rank in sorted((rank for rank, share in late.items() if share > least), key=lambda rank: -late[rank]):
        per_step = sums[rank].cost / sums[rank].steps if sums[rank].steps else None
        stragglers.append(Straggler(rank, hosts.get(rank, "?"), late[rank], per_step, cause(rank, sums)))
    return stragglers


def cause(rank: int, sums: Mapping[int, RankSecond]) -> str:
    """Return the reason why a rank is late as a clause: the state that exceeds the others' median most, or "" if none
    does.
    """
    others = [part for other, part in sums.items() if other != rank]
    own = sums[rank]
    if not others or not own.length:
        return ""
    excess = {state: _seconds_in(own, state) - median(_seconds_in(part, state) for part in others) for state in _CAUSES}
    most = max(excess, key=lambda state: excess[state])
    return _CAUSES[most] if excess[most] > own.cost / 4 and excess[most] > 0 else ""


def _seconds_in(part: RankSecond, state: int) -> float:
    return sum(part.states.get(one, 0.0) for one in (COMPUTE if state == FORWARD else (state,)))


class StragglerWatch:
    """Tracks the stragglers of a job, second by second."""

    def __init__(self) -> None:
        self._seconds: deque[Second] = deque(maxlen=_LOOKED_AT)
        self._since: dict[int, int] = {}

    def look(self, second: Second, hosts: Mapping[int, str]) -> list[Straggler]:
        """Take the next second, and return the current stragglers, the costliest first."""
        self._seconds.append(second)
        sums = total(self._seconds)
        known = {one.rank: one for one in found(sums, hosts, 0.0)}
        for rank in list(self._since):
            if rank not in known or known[rank].share < _CALM:
                del self._since[rank]
        for rank, one in known.items():
            if one.share > SHARE and rank not in self._since and self._is_steady(rank):
                self._since[rank] = second.begin
        stands_from = second.begin - STANDS_AFTER * 1e9
        named = [one for one in known.values() if one.rank in self._since]
        return [replace(one, stands=self._since[one.rank] <= stands_from) for one in named]

    def _is_steady(self, rank: int) -> bool:
        parts = [second.ranks[rank] for second in self._seconds if rank in second.ranks]
        return sum(part.cost > SHARE * part.length for part in parts) >= _OF_THEM
