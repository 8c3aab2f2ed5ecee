"""Collecting the data of a page while the job runs, in bounded memory. Pure: it reads no clock.

The seconds of the shared model are added up, by rank, from its first step to its last. The time before and after is not
training.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distrun.runner.observation.consumer import Consumer, JobEnd, Source
from distrun.runner.observation.model import model
from distrun.runner.observation.model.model import Model
from distrun.runner.observation.model.seconds import RankSecond, Second
from distrun.runner.observation.model.stragglers import Straggler, found
from distrun.runner.observation.report.histogram import Histogram
from distrun.runner.observation.report.summary import Host, Interval, RankSummary
from distrun.tracing import layout
from distrun.tracing.reader import Event

_STATES = {
    layout.INPUT: "input",
    layout.FORWARD: "forward",
    layout.BACKWARD: "backward",
    layout.OPTIMIZER: "optimizer",
    layout.SAVING: "saving",
    layout.OTHER: "other",
}
_MOST_CHOICES = 8
"""The last choices of autotuning that are kept: in an elastic job, it chooses for each world."""
_MOST_MOMENTS = 240
"""With more moments, each pair is merged into one."""


class RankTotal:
    """The seconds of one rank."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.training = RankSecond()
        """From its first step to its last, without the seconds of these two."""
        self.steps = 0
        self._first = RankSecond()
        self._last = RankSecond()  # from the second-to-last to the last second with a step
        self._pending = RankSecond()  # after that

    def add(self, second: RankSecond) -> None:
        """Add the next second."""
        self._pending.add(second)
        if not second.steps:
            return
        self.steps += second.steps
        if not self._first.steps:  # it may include imports, or a first step that compiles
            self._first = second
        else:
            self.training.add(self._last)
            self._last = self._pending  # it may include what follows the training
        self._pending = RankSecond()

    @property
    def whole(self) -> RankSecond:
        """The seconds to divide by steps. The first and the last count only if these are all."""
        parts = (self.training, self._last, self._first)
        return next((part for part in parts if part.steps), self._pending)


class HostTotal:
    """The usage of one host."""

    def __init__(self) -> None:
        self.samples = 0
        self.cpu = self.memory = self.received = self.sent = 0.0

    def add(self, present: model.Host) -> None:
        """Add the current usage."""
        self.samples += 1
        self.cpu += present.cpu
        self.received += present.received
        self.sent += present.sent
        self.memory = max(self.memory, present.memory)

    def mean(self, name: str, ranks: Sequence[int]) -> Host:
        """Return the host with its mean usage, and the most of its memory."""
        count = self.samples
        return Host(name, ranks, self.cpu / count, self.memory, self.received / count, self.sent / count)


@dataclass
class _Stretch:
    """Consecutive seconds, summed over all ranks."""

    begin: int
    seconds: int
    together: RankSecond

    def add(self, other: _Stretch) -> None:
        self.seconds += other.seconds
        self.together.add(other.together)


class Collector(Consumer):
    """Takes what a consumer takes, and keeps the totals for the page."""

    def __init__(self, began: int) -> None:
        """Args: `began` is the time when the job began."""
        self.steps = Histogram()
        """The durations of the steps of all ranks."""
        self._began = began
        self._model = Model(self._take_second)
        self._ranks: dict[int, RankTotal] = {}
        self._hosts: dict[str, HostTotal] = {}
        self.missing_steps: Counter[int] = Counter()
        """The number of steps, by rank, whose records were overwritten before they were read."""
        self._last_step: dict[int, tuple[int, int]] = {}  # number and time, by process
        self._moments: list[_Stretch] = []
        self._merged = 1  # seconds in a moment
        self.autotuned: deque[str] = deque(maxlen=_MOST_CHOICES)
        """The choices of autotuning, the latest last."""

    # Input -----------------------------------------------------------------------------------------------------

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        for event in events:
            if event.kind == layout.STEP:
                if not self._last_step:
                    self._hosts.clear()  # the training begins: drop the usage before it
                number, at = self._last_step.get(source.process, (0, 0))
                if number and event.number == number + 1 and event.begin > at:
                    self.steps.add((event.begin - at) / 1e9)
                elif event.number > number + 1:
                    self.missing_steps[source.rank] += event.number - number - 1
                self._last_step[source.process] = event.number, event.begin
            elif event.kind == layout.REMARK and (text := names[event.name]).startswith(layout.AUTOTUNED):
                self.autotuned.append(text.removeprefix(layout.AUTOTUNED))
        self._model.events(source, events, names)

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        self._model.sample(host, sample)
        self._hosts.setdefault(host, HostTotal()).add(self._model.hosts[host])

    def tick(self, now: int) -> None:
        self._model.tick(now)

    def close(self, ending: JobEnd) -> None:
        self._model.close(ending)

    def _take_second(self, second: Second) -> None:
        for number, part in second.ranks.items():
            rank = self._ranks.get(number)
            if rank is None:
                rank = self._ranks[number] = RankTotal(self._model.ranks[number].host)
            rank.add(part)
        new = _Stretch(second.begin, 1, RankSecond())
        for part in second.ranks.values():
            new.together.add(part)
        if self._moments and self._moments[-1].seconds < self._merged:
            self._moments[-1].add(new)
        else:
            self._moments.append(new)
        if len(self._moments) > _MOST_MOMENTS:
            self._merged *= 2
            for one, other in zip(self._moments[::2], self._moments[1::2], strict=False):
                one.add(other)
            del self._moments[1::2]

    # Output ----------------------------------------------------------------------------------------------------

    def ranks(self, planned: Mapping[int, str]) -> list[RankSummary]:
        """Return all ranks, including planned ranks without events."""
        hosts = {**planned, **{number: rank.host for number, rank in self._ranks.items()}}
        return [self._rank(number, hosts[number]) for number in sorted(hosts)]

    def _rank(self, number: int, host: str) -> RankSummary:
        rank = self._ranks.get(number)
        if rank is None:
            return RankSummary(number, host, 0, 0, {})
        whole = rank.whole
        each = whole.steps or whole.length or 1.0
        seconds = {name: value / each for name, value in _activities(whole).items()}
        samples = whole.samples / each if whole.steps else 0.0
        return RankSummary(number, host, rank.steps, samples, seconds, whole.cost / each)

    def unheard(self) -> list[int]:
        """Return the ranks that were running when their host's agent was last heard of, long before the end."""
        return sorted(number for number, rank in self._model.ranks.items() if rank.account.is_lost)

    def stragglers(self) -> list[Straggler]:
        """Return the ranks that cost the others more than a tenth of the training, the costliest first."""
        sums = {number: rank.whole for number, rank in self._ranks.items()}
        return found(sums, {number: rank.host for number, rank in self._ranks.items()})

    def hosts(self, planned: Mapping[str, Sequence[int]]) -> list[Host]:
        """Return all hosts, with the ranks that were planned there."""
        return [
            self._hosts[name].mean(name, on) if name in self._hosts else Host(name, on) for name, on in planned.items()
        ]

    def moments(self) -> list[Interval]:
        """Return the step rate and the shares over time, from the first step to the last."""
        numbers = [number for number, stretch in enumerate(self._moments) if stretch.together.steps]
        stretches = self._moments[numbers[0] : numbers[-1] + 1] if numbers else self._moments
        if len(stretches) > 4:  # the first and the last are incomplete
            stretches = stretches[1:-1]
        moments = []
        for stretch in stretches:
            if length := stretch.together.length:
                shares = {name: seconds / length for name, seconds in _activities(stretch.together).items()}
                begin, rate = (stretch.begin - self._began) / 1e9, stretch.together.steps / length
                moments.append(Interval(begin, stretch.seconds, rate, shares))
        return moments


def _activities(part: RankSecond) -> dict[str, float]:
    """Return the seconds of `part` by activity."""
    seconds = {name: part.states.get(state, 0.0) for state, name in _STATES.items()}
    return seconds | {"waiting": sum(part.waiting.values()), "moving": part.moving}
