"""The current state of a running job, rank by rank, from its agents' reports: a consumer that other consumers use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distrun.runner.observation.consumer import Consumer, JobEnd, Source
from distrun.runner.observation.model.accounts import SECOND, Account, Operations
from distrun.runner.observation.model.output import RankOutput
from distrun.runner.observation.model.seconds import RankSecond, Second, divided
from distrun.runner.observation.model.stragglers import Straggler, StragglerWatch, total
from distrun.tracing.reader import Event

WINDOW = 10
"""Seconds that rates and shares are averaged over."""
_LATE = 2 * SECOND
"""If a host's agent sends no samples, a second is divided after this time, even without later events of its ranks."""
_LOST_AFTER = 5 * SECOND
"""After this time without a sample from a host, which sends two per second, the state of its ranks is unknown."""
_KEPT = 5 * SECOND
"""How long the ranks' past activities are kept."""


class Rank:
    """The current state of a rank."""

    def __init__(self, account: Account, process: int, output: RankOutput) -> None:
        self.account = account
        self.process = process
        """Its number in frames."""
        self.output = output
        self.cpu: float | None = None
        """Percent of one core."""
        self.memory: int | None = None
        """Bytes."""
        self.gpu: Mapping[str, float] | None = None
        """`use` in percent and `memory` in bytes, if it computes on a GPU."""
        self.whole = RankSecond()
        """The sum of all seconds so far."""

    @property
    def host(self) -> str:
        """The host that it runs on."""
        return self.account.host


class Host:
    """The current usage of a host."""

    def __init__(self) -> None:
        self.cpu = self.memory = 0.0
        """Percent of all cores, and of all memory."""
        self.received = self.sent = 0.0
        """Bytes per second over its busiest interface. With a sum, bytes that cross a bridge would count twice."""
        self.received_lately = self.sent_lately = 0.0
        """The mean over `WINDOW` seconds, as traffic comes in bursts, once per step."""
        self._counted: deque[tuple[int, Mapping[str, Sequence[int]]]] = deque()

    @property
    def told_until(self) -> int:
        """The time of its last sample: all events that its ranks recorded before have come."""
        return self._counted[-1][0] if self._counted else 0

    def is_silent(self, now: int) -> bool:
        """Return whether its agent has sent nothing for so long that the host is probably lost."""
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
    """Return the bytes per second, received and sent, of the busiest interface between two counts."""
    seconds = (now[0] - before[0]) / SECOND
    rates = [
        ((now[1][name][0] - before[1][name][0]) / seconds, (now[1][name][1] - before[1][name][1]) / seconds)
        for name in now[1].keys() & before[1].keys()
        if name != "lo"
    ]
    return max(rates, key=sum, default=(0.0, 0.0))


class Model(Consumer):
    """The state of a job. The thread that feeds it can query it at any time."""

    def __init__(self, on_second: Callable[[Second], None] = lambda second: None, since: int | None = None) -> None:
        """Args: `on_second` takes each divided second. `since` is the begin of the first. None: of the first event."""
        self._since = since or 0
        self._on_second = on_second
        self.ranks: dict[int, Rank] = {}
        self.hosts: dict[str, Host] = {}
        self.stragglers: list[Straggler] = []
        """The ranks that the others wait for at present, the costliest first."""
        self.now = 0
        self._operations = Operations()
        self._watch = StragglerWatch()
        self._recent: deque[Second] = deque(maxlen=WINDOW)
        self._recent_sums: dict[int, RankSecond] = {}
        self._next = since  # the begin of the next second to divide

    # Input -----------------------------------------------------------------------------------------------------

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        if not events:
            return
        rank = self.rank(source.rank, source.process, source.host)
        rank.account.take(events, names, self._operations)
        if self._next is None:
            self._next = events[0].begin

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        self.hosts.setdefault(host, Host()).take(sample)
        for rank in self.ranks.values():
            if rank.host != host:
                continue
            if (own := sample["ranks"].get(str(rank.process))) is not None:
                rank.cpu, rank.memory, rank.gpu = own["cpu"], own["memory"], own.get("gpu")
                rank.account.is_gone = rank.account.is_lost = False
            elif rank.cpu is not None:  # it is gone
                rank.account.is_lost = False
                rank.account.leave()

    def output(self, rank: int, data: bytes) -> None:
        self.rank(rank, rank, "").output.feed(data)

    def tick(self, now: int) -> None:
        """Divide the seconds that are over and that all ranks have reported."""
        self.now = now
        for rank in self.ranks.values():
            if rank.host in self.hosts and self.hosts[rank.host].is_silent(now):
                rank.account.is_lost |= not rank.account.is_gone
                rank.account.leave()
        while self._next is not None and (told := self._told_of(self._next + SECOND)) is not None:
            self._divide(self._next, told)
            self._next += SECOND

    def close(self, ending: JobEnd) -> None:
        """Divide the remaining seconds: the job is over."""
        until = max((rank.account.heard_until for rank in self.ranks.values()), default=0)
        while self._next is not None:
            self._divide(self._next, list(self.ranks))
            self._next = self._next + SECOND if self._next + SECOND <= until else None

    def rank(self, number: int, process: int, host: str) -> Rank:
        """Return a rank. It is a new one, with the output of the old one, if another process or host has its number."""
        rank = self.ranks.get(number)
        if rank is None or (host and (rank.host, rank.process) != (host, process)):
            output = RankOutput() if rank is None else rank.output
            rank = self.ranks[number] = Rank(Account(number, host), process, output)
        return rank

    def _told_of(self, end: int) -> list[int] | None:
        """Return the ranks whose events up to `end` are complete, or None if other ranks' events are still to come."""
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
        """Divide the second from `begin` for the ranks whose events are complete, and update all sums."""
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
        """Return earlier time that ranks have reported only now, because their agent was stopped or disconnected."""
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

    # Output ----------------------------------------------------------------------------------------------------

    def recent(self, rank: int) -> RankSecond:
        """Return the sum of a rank's last `WINDOW` divided seconds."""
        return self._recent_sums.get(rank, RankSecond())

    def steps_per_second(self, rank: int) -> float | None:
        """Return the steps per second of a rank, or None if it has reported none."""
        recent = self.recent(rank)
        return recent.steps / recent.length if recent.length and self.ranks[rank].account.steps else None

    def samples_per_second(self, rank: int) -> float | None:
        """Return the samples per second of a rank, or None if it has reported none."""
        recent = self.recent(rank)
        return recent.samples / recent.length if recent.length and recent.samples else None
