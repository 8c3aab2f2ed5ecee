"""Dividing a second of all ranks into computing, waiting for input, waiting for other ranks and moving data. Pure.

A rank waits for another rank while it sleeps and the other, the last of all, has not submitted the operation. The cost
of a rank is defined differently, because with two slow ranks, neither alone would cost anything. A rank is late from
the moment when half of the other ranks have submitted an operation until it submits the operation itself. Its cost is
the median of the times that the other ranks sleep meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from distrun.runner.observation.model.accounts import SECOND, Account, Operations
from distrun.runner.observation.model.intervals import Interval, clipped, common, length, union

LONG = SECOND
"""Nanoseconds of sleep after which ranks that are awake count as late, even if the operation is not done yet."""


@dataclass
class RankSecond:
    """One second of a rank, or a sum of its seconds. All times are in seconds."""

    states: dict[int, float] = field(default_factory=dict)
    """The time in each of `layout.STATES`, without sleep."""
    waiting: dict[int, float] = field(default_factory=dict)
    """The time asleep while another rank was late, by that rank."""
    moving: float = 0.0
    """The time asleep when all ranks had submitted the operation: data moved, or ranks negotiated."""
    cost: float = 0.0
    """The time that it cost the others by being late."""
    steps: int = 0
    samples: int = 0
    length: float = 0.0

    def add(self, other: RankSecond) -> None:
        """Add other seconds of the same rank."""
        for state, seconds in other.states.items():
            self.states[state] = self.states.get(state, 0.0) + seconds
        for rank, seconds in other.waiting.items():
            self.waiting[rank] = self.waiting.get(rank, 0.0) + seconds
        self.moving += other.moving
        self.cost += other.cost
        self.steps += other.steps
        self.samples += other.samples
        self.length += other.length


@dataclass(frozen=True)
class Second:
    """One second of all ranks."""

    begin: int
    """Its begin, in nanoseconds of the launcher's monotonic clock."""
    ranks: dict[int, RankSecond]


def divided(accounts: Mapping[int, Account], operations: Operations, begin: int, end: int) -> Second:
    """Return how the ranks spent the time from `begin` to `end`."""
    asleep = {rank: account.asleep(begin, end) for rank, account in accounts.items()}
    waited, late = _lateness(operations, begin, end)
    for rank, intervals in _missed(accounts, end).items():
        late[rank] += clipped(intervals, begin, end)
        for other, account in accounts.items():
            if other != rank and account.waits_for:
                waited[other, rank] += clipped([(account.waits_since, end)], begin, end)
    ranks = {}
    for rank, account in accounts.items():
        sleep = asleep[rank]
        waiting = {
            other: length(common(union(intervals), sleep)) / SECOND * operations.stride
            for (waiter, other), intervals in waited.items()
            if waiter == rank
        }
        total = length(sleep) / SECOND
        waiting = _bounded({other: seconds for other, seconds in waiting.items() if seconds}, total)
        ranks[rank] = RankSecond(
            states={
                state: (length(intervals) - length(common(intervals, sleep))) / SECOND
                for state, intervals in account.states(begin, end).items()
            },
            waiting=waiting,
            moving=max(0.0, total - sum(waiting.values())),
            cost=_cost(rank, late, asleep, operations.stride, (end - begin) / SECOND),
            steps=account.steps_in(begin, end),
            samples=account.samples_in(begin, end),
            length=(end - begin) / SECOND,
        )
    return Second(begin, ranks)


def _lateness(
    operations: Operations, begin: int, end: int
) -> tuple[defaultdict[tuple[int, int], list[Interval]], defaultdict[int, list[Interval]]]:
    """Return the intervals of waiting, by (waiting rank, awaited rank), and the intervals that each rank was late."""
    waited: defaultdict[tuple[int, int], list[Interval]] = defaultdict(list)
    late: defaultdict[int, list[Interval]] = defaultdict(list)
    for submitted in operations.within(begin, end):
        order = sorted(submitted, key=submitted.__getitem__)
        times = [submitted[rank] for rank in order]
        last = order[-1]
        for place, rank in enumerate(order[:-1]):
            if times[place] < times[-1]:
                waited[rank, last] += clipped([(times[place], times[-1])], begin, end)
        for place in range(len(order) // 2, len(order)):
            half = median_low(times[:place] + times[place + 1 :])
            if half < times[place]:
                late[order[place]] += clipped([(half, times[place])], begin, end)
    return waited, late


def _missed(accounts: Mapping[int, Account], end: int) -> dict[int, list[Interval]]:
    """Return the interval of each awake rank up to `end`, if at least half of the ranks have slept for `LONG`."""
    sleepers = [account.waits_since for account in accounts.values() if account.waits_for]
    awake = [account.rank for account in accounts.values() if not account.waits_for and not account.is_gone]
    if not sleepers or len(awake) > len(sleepers) or median_low(sleepers) > end - LONG:
        return {}
    since = median_low(sleepers)
    return {rank: [(since, end)] for rank in awake}


def _cost(
    rank: int, late: Mapping[int, Sequence[Interval]], asleep: Mapping[int, list[Interval]], stride: int, most: float
) -> float:
    own = union(late.get(rank, ()))
    if not own:
        return 0.0
    others = [length(common(own, sleep)) for other, sleep in asleep.items() if other != rank]
    return min(most, median(others) / SECOND * stride) if others else 0.0


def _bounded(waiting: dict[int, float], total: float) -> dict[int, float]:
    """Return `waiting` scaled down to a sum of `total`, if needed: waits for several ranks may overlap."""
    together = sum(waiting.values())
    return {rank: seconds * total / together for rank, seconds in waiting.items()} if together > total else waiting
