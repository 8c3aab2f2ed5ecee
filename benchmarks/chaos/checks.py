"""Decides by the facts that the ranks of program.py told whether no sample and no step was lost or doubled."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Fact = dict[str, Any]


@dataclass
class Report:
    """The findings about one job."""

    generations: int = 0
    """The number of those in which some rank came to train."""
    steps: int = 0
    """The number of steps that are done."""
    sizes: set[int] = field(default_factory=set)
    """The numbers of ranks by which they were done."""
    losses: list[float] = field(default_factory=list)
    """The loss of each step in turn, over the samples of all ranks."""
    faults: list[str] = field(default_factory=list)
    """Sentences; empty: all is well."""


def facts_in(folder: Path) -> list[Fact]:
    """Return what the processes of a job have written."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def examine(facts: Iterable[Fact], samples: int, epochs: int) -> Report:
    """Examine a job that has come to its end.

    A generation begins where the one before ended, on all of its ranks with the same bits; the steps before that place
    are done, and what ranks began beyond it is done again. In each epoch each sample must be in one step that is done.
    """
    report = Report()
    by_generation: dict[int, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_generation[fact["generation"]].append(fact)
    starts = {number: _common_start(number, told, report) for number, told in sorted(by_generation.items())}
    begun = [(number, start) for number, start in starts.items() if start is not None]
    report.generations = len(begun)
    if not begun:
        report.faults.append("no rank came to train")
        return report
    end = _common_end(begun[-1][0], by_generation[begun[-1][0]], report)
    done: dict[int, Counter[int]] = defaultdict(Counter)
    if begun[0][1] != 0:
        report.faults.append(f"training begins at step {begun[0][1]}")
    for (number, start), (_, stop) in zip(begun, [*begun[1:], (0, end)], strict=True):
        if stop < start:
            report.faults.append(f"steps {stop} to {start - 1} are lost: generation {number} had done them")
        for step in range(start, stop):
            told = [fact for fact in by_generation[number] if fact["what"] == "step" and fact["step"] == step]
            _examine_step(number, step, told, done, report)
    for epoch in range(epochs):
        times = done.pop(epoch, Counter())
        lost = [sample for sample in range(samples) if sample not in times]
        doubled = [sample for sample, number in times.items() if number > 1 or not 0 <= sample < samples]
        for what, which in (("lost", lost), ("doubled", doubled)):
            if which:
                report.faults.append(f"epoch {epoch}: {len(which)} samples {what}: {sorted(which)[:8]}")
    if done:
        report.faults.append(f"there are steps of epochs {sorted(done)}")
    return report


def differences(report: Report, undisturbed: Report, tolerance: float = 1e-9) -> list[str]:
    """Compare the losses of two jobs of the same size; return sentences, none if they are equal within rounding."""
    if report.sizes != undisturbed.sizes or len(report.sizes) != 1:
        return [f"worlds of sizes {sorted(report.sizes)} and {sorted(undisturbed.sizes)} cannot be compared"]
    if len(report.losses) != len(undisturbed.losses):
        return [f"{len(report.losses)} steps, undisturbed {len(undisturbed.losses)}"]
    return [
        f"step {step}: the loss is {ours!r}, undisturbed {theirs!r}"
        for step, (ours, theirs) in enumerate(zip(report.losses, undisturbed.losses, strict=True))
        if abs(ours - theirs) > tolerance * max(1.0, abs(theirs))
    ][:5]


def pauses(facts: Iterable[Fact], kills: Iterable[tuple[float, int]]) -> list[float]:
    """Return the seconds from each kill until all ranks of a later generation were in a step.

    Args:
        facts: those of the job; each of a step has its time.
        kills: the time of each and the generation that it hit. Those after which no step came are left out.
    """
    firsts: dict[int, dict[int, float]] = defaultdict(dict)
    sizes: dict[int, int] = {}
    for fact in facts:
        if fact["what"] == "step":
            first = firsts[fact["generation"]]
            first[fact["rank"]] = min(fact["at"], first.get(fact["rank"], fact["at"]))
            sizes[fact["generation"]] = fact["size"]
    whole = [(number, max(first.values())) for number, first in sorted(firsts.items()) if len(first) == sizes[number]]
    after = [(killed, [at for number, at in whole if number > generation]) for killed, generation in kills]
    return [min(times) - killed for killed, times in after if times]


def _common_start(number: int, told: Sequence[Fact], report: Report) -> int | None:
    starts = [fact for fact in told if fact["what"] == "start"]
    for name in ("step", "weights", "size"):
        if len({fact[name] for fact in starts}) > 1:
            values = ", ".join(f"rank {fact['rank']}: {fact[name]}" for fact in starts)
            report.faults.append(f"generation {number} begins with different {name} ({values})")
    return max((fact["step"] for fact in starts), default=None)


def _common_end(number: int, told: Sequence[Fact], report: Report) -> int:
    ends = [fact for fact in told if fact["what"] == "end"]
    sizes = {fact["size"] for fact in told}
    if {fact["rank"] for fact in ends} != set(range(max(sizes))):
        report.faults.append(f"generation {number} is the last, and only ranks {[fact['rank'] for fact in ends]} ended")
    for name in ("step", "weights"):
        if len({fact[name] for fact in ends}) > 1:
            report.faults.append(f"the ranks end with different {name}")
    return max((fact["step"] for fact in ends), default=0)


def _examine_step(number: int, step: int, told: Sequence[Fact], done: dict[int, Counter[int]], report: Report) -> None:
    sizes, epochs = {fact["size"] for fact in told}, {fact["epoch"] for fact in told}
    ranks = sorted(fact["rank"] for fact in told)
    if len(sizes) != 1 or len(epochs) != 1 or ranks != list(range(*sizes)):
        report.faults.append(
            f"step {step} of generation {number}: ranks {ranks} of {sorted(sizes)} made it, in epochs {sorted(epochs)}"
        )
    report.steps += 1
    report.sizes |= sizes
    report.losses.append(sum(fact["loss"] for fact in sorted(told, key=lambda fact: fact["rank"])))
    for fact in told:
        done[fact["epoch"]].update(fact["samples"])
