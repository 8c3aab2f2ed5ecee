"""Making a job's profile while it runs, in bounded memory."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distrun.runner.observation.consumer import Consumer, Source
from distrun.runner.observation.prediction.profile import MISSING, JobProfile, StepSeconds
from distrun.runner.observation.profiling.reductions import Reductions, Shape, batches
from distrun.runner.observation.profiling.steps import ProfiledStep, RankSteps
from distrun.tracing import layout
from distrun.tracing.reader import Event

MOST_STEPS = 256
MOST_ENTRIES = 60_000
"""The most steps of the job, and the most entries (steps of ranks, and operations), that are kept. With more, only
every 2nd, 4th, 8th ... step is kept.
"""
FEWEST_STEPS = 3


@dataclass(frozen=True)
class Profiled:
    """A profile, or the reason why there is none."""

    profile: JobProfile | None
    why_not: str = ""
    """The reason, without a full stop."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for a timeline or a report."""
        return {MISSING: self.why_not} if self.profile is None else self.profile.to_json()


class _KeptStep:
    """One step of the job: the divided steps of all ranks, and their operations."""

    def __init__(self) -> None:
        self.ranks: dict[int, ProfiledStep] = {}
        self.reductions = Reductions()

    def add(self, rank: int, step: ProfiledStep) -> None:
        self.reductions.add(step)
        self.ranks[rank] = step._replace(reductions=())

    def __len__(self) -> int:
        return len(self.ranks) + len(self.reductions)


class Profiler(Consumer):
    """Takes the events of all ranks, on one clock, and makes the profile of their latest world."""

    def __init__(self, size: int | None, wire: str = "") -> None:
        """
        Args:
            size: the number of ranks of the job. None = ranks come and go.
            wire: the type of gradients between hosts. Empty = float32, their own.
        """
        self._size = size
        self._wire = wire or "float32"
        self._generation = 0
        self._divided: dict[int, tuple[int, RankSteps]] = {}  # by rank: the process, and its steps
        self._hosts: dict[int, str] = {}
        self._begin_generation()

    def _begin_generation(self) -> None:
        self._hosts = {}
        self._counts: Counter[int] = Counter()  # steps by rank
        self._kept: dict[int, _KeptStep] = {}
        self._entries = 0
        self._stride = 1
        self._unknown_passes = self._gpu_passes = 0

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        process, steps = self._divided.get(source.rank, (-1, RankSteps()))
        if process != source.process:
            steps = RankSteps()
            self._divided[source.rank] = source.process, steps
        for part in _worlds(events):
            if part and part[0].kind == layout.GENERATION:
                self._joined(source.rank, part[0].number, steps)
            if steps.generation != self._generation:
                continue  # the rank is not in this world, or has not joined it yet
            self._hosts[source.rank] = source.host
            for step in steps.take(part, names):
                self._add(source.rank, step)

    def _joined(self, rank: int, generation: int, steps: RankSteps) -> None:
        steps.begin_generation(generation)
        if generation > self._generation or self._counts[rank]:  # the number may be the same after a restart
            self._begin_generation()
        self._generation = max(self._generation, generation)

    def _add(self, rank: int, step: ProfiledStep) -> None:
        self._counts[rank] += 1
        self._gpu_passes += step.on_gpu
        if not step.backward_began:
            self._unknown_passes += 1
            return
        if (number := self._counts[rank]) % self._stride:
            return
        kept = self._kept.setdefault(number, _KeptStep())
        before = len(kept)
        kept.add(rank, step)
        self._entries += len(kept) - before
        while len(self._kept) > MOST_STEPS or (self._entries > MOST_ENTRIES and len(self._kept) > FEWEST_STEPS):
            self._stride *= 2
            self._kept = {at: one for at, one in self._kept.items() if not at % self._stride}
            self._entries = sum(map(len, self._kept.values()))

    # The profile ------------------------------------------------------------------------------------------------------

    def profiled(self) -> Profiled:
        """Return the profile of the steps so far."""
        if why_not := self._why_not():
            return Profiled(None, why_not)
        count = len(self._hosts)
        shapes: dict[int, Shape] = {}
        for number, one in self._kept.items():
            if len(one.ranks) == count and (shape := one.reductions.shape(count)):
                shapes[number] = shape
        if not shapes:
            return Profiled(None, "its backward passes reduced no gradients that all ranks have told of")
        # The most frequent operations of a step, as autotuning varies them. Among equals, the latest.
        usual = Counter(reversed(shapes.values())).most_common(1)[0][0]
        steps = [self._kept[number] for number, shape in shapes.items() if shape == usual]
        if len(steps) < FEWEST_STEPS:
            return Profiled(None, f"it has done less than {FEWEST_STEPS} steps that reduced the same gradients")
        per_host = Counter(self._hosts.values())
        ranks = [[one.ranks[rank] for one in steps] for rank in sorted(self._hosts)]
        needed = [[step.input + step.forward + step.backward for step in own] for own in ranks]
        return Profiled(
            JobProfile(
                ranks=count,
                hosts=len(per_host),
                ranks_per_host=max(per_host.values()),
                steps=len(steps),
                seconds=_seconds(ranks),
                jitter=math.sqrt(statistics.fmean(deviation(times) ** 2 for times in needed)),
                spread=statistics.pstdev([statistics.median(times) for times in needed]),
                wire=self._wire,
                gradients=batches([one.reductions for one in steps], usual, self._wire),
            )
        )

    def _why_not(self) -> str:
        """Return the reason why there is no profile, or "" if there may be one."""
        heard = len(self._hosts)
        if not heard:
            return "no rank has told what it did"
        if self._size is not None and heard < self._size:
            return f"it had {self._size} ranks, of which this launcher heard of {heard}"
        if heard == 1:
            return "a job of one rank reduces no gradients: let it run on two, on one host or more"
        if not self._counts:
            return "no rank has told of two steps"
        if self._gpu_passes:
            return "its gradients were computed by GPUs, of which the ranks do not see what they do when"
        if not self._kept and self._unknown_passes:
            return (
                "no rank has told when a backward pass began, which is known where distrun.torch's "
                "DistributedOptimizer reduces the gradients"
            )
        return ""


def _worlds(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Yield the events in pieces that each belong to one world."""
    begin = 0
    for at, event in enumerate(events):
        if event.kind == layout.GENERATION:
            yield events[begin:at]
            begin = at
    yield events[begin:]


def _seconds(ranks: Sequence[Sequence[ProfiledStep]]) -> StepSeconds:
    """Return for each part the median over the ranks of the medians over their steps."""

    def usual(values: Sequence[Sequence[float]]) -> float:
        return statistics.median([statistics.median(own) for own in values])

    def part(name: str) -> float:
        return usual([[getattr(step, name) for step in own] for own in ranks])

    exposed = usual(
        [[max(0.0, s.whole - s.forward - s.backward - s.optimizer - s.input - s.other) for s in own] for own in ranks]
    )
    parts = {name: part(name) for name in ("forward", "backward", "optimizer", "input", "other")}
    return StepSeconds(step=part("whole"), communication=exposed, **parts)


def deviation(times: Sequence[float]) -> float:
    """Return the standard deviation, estimated from the interquartile range, so that interrupted steps do not count."""
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / 1.349
