"""Measuring: programs take turns; the durations of each are summarised by their median and quartiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import quantiles

Span = tuple[float, float]
"""When a run of a program began and ended, on the clock that all processes of a host share (`time.perf_counter`)."""


@dataclass(frozen=True)
class Summary:
    """The median and the quartiles of `count` durations, in seconds."""

    median: float
    quartiles: tuple[float, float]
    count: int


def summary(durations: Sequence[float]) -> Summary:
    """Return the summary of one or more durations."""
    if len(durations) < 2:
        return Summary(durations[0], (durations[0], durations[0]), 1)
    lower, median, upper = quantiles(durations, n=4, method="inclusive")
    return Summary(median, (lower, upper), len(durations))


def exactly(value: float) -> Summary:
    """Return the summary of something that was computed, or measured once."""
    return Summary(value, (value, value), 1)


def fastest(turns: Sequence[Sequence[float]]) -> Summary:
    """Return the summary of a program's runs, of each of which the fastest turn counts."""
    return summary([min(run) for run in zip(*turns, strict=True)])


@dataclass(frozen=True)
class Rounds:
    """How often programs are run: in each of `count` rounds every program has one turn of `turn` runs.

    A turn of several begins with one more that does not count: it finds what the program before left in the caches.
    """

    count: int
    turn: int = 1
    warmup: int = 5
    """Rounds of one run each before the ones that count."""

    def shortened(self) -> Rounds:
        """Return a third of the rounds, but at least three, for a quick look."""
        return Rounds(max(3, self.count // 3), self.turn, self.warmup)


def take_turns(
    programs: dict[str, Callable[[], object]],
    rounds: Rounds,
    before: Callable[[], None],
    after: Callable[[str], None],
) -> dict[str, list[Span]]:
    """Run the programs in turns, so that whatever the machine does meanwhile happens to all of them.

    `before` is called before each run, `after` with the program's name after it; their time does not count.
    """
    for _ in range(rounds.warmup):
        for name, program in programs.items():
            timed(program, before)
            after(name)
    spans: dict[str, list[Span]] = {name: [] for name in programs}
    for _ in range(rounds.count):
        for name, program in programs.items():
            uncounted = int(rounds.turn > 1)
            for run in range(rounds.turn + uncounted):
                span = timed(program, before)
                after(name)
                if run >= uncounted:
                    spans[name].append(span)
    return spans


def timed(program: Callable[[], object], before: Callable[[], None]) -> Span:
    """Run `program` once; return when it began and ended."""
    before()
    begun = time.perf_counter()
    program()
    return begun, time.perf_counter()


def durations(spans_of_ranks: Iterable[Sequence[Span]], skew: float = float("inf")) -> list[float]:
    """Return the duration of each run in seconds, from the first rank's start to the last rank's end.

    Runs that the ranks began more than `skew` seconds apart are left out, unless that leaves nothing.
    """
    runs = list(zip(*spans_of_ranks, strict=True))
    together = [run for run in runs if max(b for b, _ in run) - min(b for b, _ in run) <= skew]
    return [max(end for _, end in run) - min(begun for begun, _ in run) for run in together or runs]


def slowest(spans_of_ranks: Iterable[Sequence[Span]]) -> list[float]:
    """Return each run's duration on its slowest rank, for runs that the ranks do not begin together."""
    return [max(end - begun for begun, end in run) for run in zip(*spans_of_ranks, strict=True)]
