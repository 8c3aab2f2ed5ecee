"""Chaos: a table of campaigns of kills, and of what was lost by them, which has to be nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.chaos.campaign import Campaign, Outcome, run
from benchmarks.hosts import namespaces
from benchmarks.support.comparison import Comparison, duration
from benchmarks.support.measuring import summary

PAUSE = "median"
SEED = 5
COUNTS = ("kills", "generations", "steps", "epochs", "hangs", "faults")
CAMPAIGNS = {
    "one machine, replaced": Campaign(),
    "one machine, shrinks and grows": Campaign(min_np=1),
    "two hosts": Campaign(hosts=True),
}


@dataclass
class Campaigns(Comparison):
    """A table whose rows have counts, too."""

    counts: dict[str, list[str]] = field(default_factory=dict)
    """The values of `COUNTS` and the longest pause, by row."""

    def cells(self) -> list[list[str]]:
        """Return the whole table, its headings first."""
        head, *rows = super().cells()
        table = [[head[0], *COUNTS, *head[1:], "largest"]]
        for name, *cells in rows:
            *counts, largest = self.counts[name]
            table.append([name, *counts, *cells, largest])
        return table


def compare(quick: bool, environ: Mapping[str, str], work: Path) -> Iterator[Comparison]:
    """Yield the table of each campaign as soon as it is over."""
    for number, (name, campaign) in enumerate(CAMPAIGNS.items()):
        if campaign.hosts and (reason := namespaces.missing()) is not None:
            yield Campaigns(f"chaos: {name}", "job", [], [], notes=[f"It is left out: {reason}."])
            continue
        kills = 20 if quick else campaign.kills
        folder = work / f"chaos-{number}"
        folder.mkdir()
        outcome = run(replace(campaign, kills=kills, seed=SEED), environ, folder)
        yield _table(name, outcome)


def _table(name: str, outcome: Outcome) -> Campaigns:
    table = Campaigns(f"chaos: {name}, seconds from a kill to the next step of all ranks", "job", [PAUSE], [])
    report = outcome.report
    counts = (
        outcome.killed.total(),
        report.generations,
        report.steps,
        outcome.epochs,
        outcome.hangs,
        len(outcome.faults) - outcome.hangs,
    )
    table.add(name, {PAUSE: summary(outcome.pauses)} if outcome.pauses else {})
    table.counts[name] = [*map(str, counts), duration(max(outcome.pauses)) if outcome.pauses else "-"]
    kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(outcome.killed.items()))
    table.notes.append(f"Kills: {kinds}; sizes of the world: {', '.join(map(str, sorted(report.sizes)))}.")
    if outcome.is_compared:
        table.notes.append("The losses were compared with those of an undisturbed job.")
    table.notes += outcome.faults
    return table
