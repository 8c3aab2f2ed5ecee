"""The present of a running job, rank by rank, from what its agents tell: a consumer without a product of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distrun.runner.observation.consumer import Source
from distrun.runner.observation.model.accounts import SECOND, Account, Operations
from distrun.runner.observation.model.output import RankOutput
from distrun.runner.observation.model.seconds import RankSecond, Second, divided
from distrun.runner.observation.model.stragglers import Straggler, StragglerWatch, total
from distrun.tracing.reader import Event

WINDOW = 10
"""Seconds that rates and shares are about."""
_LATE = 2 * SECOND
"""After which a second is divided though ranks have not told of it whose agent tells of no use of its host."""
_LOST_AFTER = 5 * SECOND
"""Without a word of a host, whose agent tells twice in a second, what its ranks do is not known any more."""
_KEPT = 5 * SECOND
"""For how long what ranks told may still be asked for."""


class Rank:
    """A rank, as far as it is known at present."""

    def __init__(self, account: Account, process: int) -> None:
        self.account = account
        self.process = process
        """Its number in frames."""
        self.output = RankOutput()
        self.cpu: float | None = None
        """Percent of one core."""
        self.memory: int | None = None
        """Bytes."""
        self.gpu: Mapping[str, float] | None = None
        """`use` in percent, `memory` in bytes, where there is one."""
        self.whole = RankSecond()
        """All seconds so far."""

    @property
    def host(self) -> str:
        """The host that it runs on."""
        return self.account.host


class Host:
    """A host, as far as its usage is known at present."""

    def __init__(self) -> None:
        self.cpu = self.memory = 0.0
        """Percent of all there is."""
        self.received = self.sent = 0.0
        """Bytes per second over its network, the interface with most; none is counted twice, as behind a bridge."""
        self.received_lately = self.sent_lately = 0.0
        """Bytes per second over `WINDOW` seconds, as what travels comes in bursts, once per step."""
        self._counted: deque[tuple[int, Mapping[str, Sequence[int]]]] = deque()

    @property
    def told_until(self) -> int:
        """The time until which everything is known that its ranks have recorded."""
        return self._counted[-1][0] if self._counted else 0

    def is_silent(self, now: int) -> bool:
        """Return whether it has told nothing for so long that it must be lost."""
        return bool(self._counted) and now - self.told_until > _LOST_AFTER

    def take(self, sample: Mapping[str, Any]) -> None:
        """Take a sample of `agent.usage`."""
        self.cpu, self.memory = sample["cpu"], sample["memory"]
        now = sample["time"], sample["network"]
        while len(self._counted) > 1 and self._counted[0][0] < now[0] - WINDOW * SECOND:
            self._counted.popleft()
        if self._counted and now[0] > self._counted[-1][0]:
            self.received, self.sent = _traffic(self._counted[-1], now)
            self.received_lately, self.sent_lately = _traffic(self._counted[0], now)
        self._counted.append(now)


def _traffic(
    before: tuple[int, Mapping[str, Sequence[int]]], now: tuple[int, Mapping[str, Sequence[int]]]
) -> tuple[float, float]:
    """Return the bytes per second, in and out, of the interface with most between two counts."""
    seconds = (now[0] - before[0]) / SECOND
    rates = [
        ((now[1][name][0] - before[1][name][0]) / seconds, (now[1][name][1] - before[1][name][1]) / seconds)
        for name in now[1].keys() & before[1].keys()
        if name != "lo"
    ]
    return max(rates, key=sum, default=(0.0, 0.0))


class Model:
    """Takes what `consumer.Consumer` takes, and can be asked at any time by the thread that tells it."""

    title = "the observation"

    def __init__(self, on_second: Callable[[Second], None] = lambda second: None, since: int | None = None) -> None:
        """
        Args:
            on_second: is told of each second when it has been divided.
            since: the time at which the first second begins; None = with the first event.
        """
        self._since = since or 0
        self._on_second = on_second
        self.ranks: dict[int, Rank] = {}
        self.hosts: dict[str, Host] = {}
        self.stragglers: list[Straggler] = []
        """Whom the others wait for at present, the dearest first."""
        self.now = 0
        self._operations = Operations()
        self._watch = StragglerWatch()
        self._recent: deque[Second] = deque(maxlen=WINDOW)
        self._recent_sums: dict[int, RankSecond] = {}
        self._next = since  # the second to be divided next begins then

    # What happens -----------------------------------------------------------------------------------------------------

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        """Take new events of a rank."""
        if not events:
            return
        rank = self._rank(source.rank, source.process, source.host)
        rank.account.take(events, names, self._operations)
        if self._next is None:
            self._next = events[0].begin

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        """Take what a host's ranks use."""
        self.hosts.setdefault(host, Host()).take(sample)
        for rank in self.ranks.values():
            if rank.host != host:
                continue
            if (own := sample["ranks"].get(str(rank.process))) is not None:
                rank.cpu, rank.memory, rank.gpu = own["cpu"], own["memory"], own.get("gpu")
                rank.account.is_gone = False
            elif rank.cpu is not None:  # it was there, and is not any more
                rank.account.leave()

    def output(self, rank: int, data: bytes) -> None:
        """Take what a rank has written."""
        self._rank(rank, rank, "").output.feed(data)

    def tick(self, now: int) -> None:
        """Divide the seconds that are over."""
        self.now = now
        for rank in self.ranks.values():
            if rank.host in self.hosts and self.hosts[rank.host].is_silent(now):
                rank.account.leave()
        while self._next is not None and (told := self._told_of(self._next + SECOND)) is not None:
            self._divide(self._next, told)
            self._next += SECOND

    def close(self, status: int) -> None:
        """The job is over, and everything has been told."""
        until = max((rank.account.heard_until for rank in self.ranks.values()), default=0)
        while self._next is not None:
            self._divide(self._next, list(self.ranks))
            self._next = self._next + SECOND if self._next + SECOND <= until else None

    def add(self, rank: int, process: int, host: str) -> None:
        """A rank is there, or will be, that has told nothing yet."""
        self._rank(rank, process, host)

    def _rank(self, number: int, process: int, host: str) -> Rank:
        rank = self.ranks.get(number)
        if rank is None or (host and rank.host != host) or (host and rank.process != process):
            kept = None if rank is None else rank.output
            rank = self.ranks[number] = Rank(Account(number, host), process)
            if kept is not None:
                rank.output = kept
        return rank

    def _told_of(self, end: int) -> list[int] | None:
        """Return the ranks that have told of all they did until then, or have ended; None: others will."""
        if self.now < end:
            return None
        told = []
        for number, rank in self.ranks.items():
            host = self.hosts.get(rank.host)
            until = rank.account.heard_until if host is None else host.told_until
            is_lost = host is not None and host.is_silent(self.now)
            if until >= end or (rank.account.is_gone and not is_lost) or (host is None and self.now >= end + _LATE):
                told.append(number)
            elif not is_lost:
                return None
        return told

    def _divide(self, begin: int, told: Sequence[int]) -> None:
        """Divide the second that begins then among the ranks that have told of it."""
        accounts = {number: self.ranks[number].account for number in told}
        there = {number: account for number, account in accounts.items() if account.is_there(begin)}
        second = divided(there, self._operations, begin, begin + SECOND)
        for number, part in self._late(accounts, begin).items():
            second.ranks.setdefault(number, RankSecond()).add(part)
        for account in there.values():
            account.divided_until = begin + SECOND
        for number, part in second.ranks.items():
            self.ranks[number].whole.add(part)
        self._recent.append(second)
        self._recent_sums = total(self._recent)
        self.stragglers = self._watch.look(second, {number: rank.host for number, rank in self.ranks.items()})
        self._operations.forget(begin - _KEPT)
        for account in there.values():
            account.forget(begin - _KEPT)
        self._on_second(second)

    def _late(self, accounts: Mapping[int, Account], begin: int) -> dict[int, RankSecond]:
        """Return what ranks have told only now of the time before: their agent was stopped, or cut off."""
        bounds = {
            number: (
                max(account.divided_until, self._since),
                begin if account.is_there(begin) else account.heard_until + 1,
            )
            for number, account in accounts.items()
        }
        late: dict[int, RankSecond] = {}
        for since, until in set(bounds.values()):
            if since < until:
                together = {number: accounts[number] for number, bound in bounds.items() if bound == (since, until)}
                late |= divided(together, self._operations, since, until).ranks
                for account in together.values():
                    account.divided_until = until
        return late

    # What is asked ----------------------------------------------------------------------------------------------------

    def recent(self, rank: int) -> RankSecond:
        """Return what a rank did in the last `WINDOW` seconds that were divided."""
        return self._recent_sums.get(rank, RankSecond())

    def steps_per_second(self, rank: int) -> float | None:
        """Steps of a rank in a second; None where steps are not known."""
        recent = self.recent(rank)
        return recent.steps / recent.length if recent.length and self.ranks[rank].account.steps else None

    def samples_per_second(self, rank: int) -> float | None:
        """Samples of a rank in a second; None where they are not known."""
        recent = self.recent(rank)
        return recent.samples / recent.length if recent.length and recent.samples else None
