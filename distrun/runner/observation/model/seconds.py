"""Dividing a second of all ranks: who computed, who waited for input, who waited for whom, who moved data. Pure.

A rank waits for another one while it sleeps and that other one, last of all, has not yet told of the operation. What
a rank costs is something else, for with two slow ranks either alone costs nothing: a rank is late from the moment at
which half of the others have told of an operation until it does so itself, and the cost of that is the time which the
others sleep meanwhile (the median of theirs).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from distrun.runner.observation.model.accounts import SECOND, Account, Operations
from distrun.runner.observation.model.intervals import Interval, clipped, common, length, union

LONG = SECOND
"""Nanoseconds of sleep after which those that do not sleep count as missed, though nothing is done yet."""


@dataclass
class RankSecond:
    """A stretch of time of one rank, a second or a sum of them; all in seconds."""

    states: dict[int, float] = field(default_factory=dict)
    """The time in each of `layout.STATES`, but for that asleep."""
    waiting: dict[int, float] = field(default_factory=dict)
    """Asleep, by the rank that the others waited for."""
    moving: float = 0.0
    """Asleep when all ranks were there: data was on its way, or the ranks agreed on something."""
    cost: float = 0.0
    """The time that it cost the others, by being late."""
    steps: int = 0
    samples: int = 0
    length: float = 0.0

    def add(self, other: RankSecond) -> None:
        """Add another stretch of the same rank."""
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
    """One second of the job."""

    begin: int
    """Nanoseconds of the launcher's monotonic clock."""
    ranks: dict[int, RankSecond]


def divided(accounts: Mapping[int, Account], operations: Operations, begin: int, end: int) -> Second:
    """Return what the ranks did within bounds."""
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
    """Return when which rank (the first) had to wait for which (the second), and when each was late."""
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
    """Return since when ranks have been missed that have kept the others asleep for long, and still do."""
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
    """Return shares that are no more than the whole: the waits for several ranks may overlap."""
    together = sum(waiting.values())
    return {rank: seconds * total / together for rank, seconds in waiting.items()} if together > total else waiting
