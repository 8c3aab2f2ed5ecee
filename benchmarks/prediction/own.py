"""Predictions beside runs of ours: hosts made of namespaces, on links that the kernel slows down.

From a profile of 2 hosts, and from one of 1 host with no more than the speed of the link, the steps on more hosts are
predicted; then they are measured.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.hosts.namespaces import Host, Link
from benchmarks.prediction import network
from benchmarks.prediction.workloads import WORKLOADS
from distrun.runner.observation.prediction.forecast import Forecast, forecasts
from distrun.runner.observation.prediction.link import assumptions
from distrun.runner.observation.prediction.profile import JobProfile, MeasuredLink

TRAINING = "benchmarks.prediction.training"
DEADLINE = 120.0
STEPS = 14
TURNS = 3
"""The turns of each run, of which the fastest counts: what else the machine does is no property of the network."""


@dataclass(frozen=True)
class Ladder:
    """Runs on one kind of link."""

    label: str
    rate: float
    hosts: tuple[int, ...]
    workloads: tuple[str, ...]
    scale: float = 1.0
    """The factor of the sizes of all gradients."""
    burst: int = 64 << 10
    """The size of packets: large ones cost the processors least, small ones are finer pieces of a slow link."""


ALL = tuple(WORKLOADS)
LADDERS = (
    Ladder("1 Gbit/s", 1e9, (1, 2, 3, 4, 6, 8), ALL),
    Ladder("10 Gbit/s", 1e10, (1, 2, 4, 8), ("hidden", "exposed", "jitter")),
    Ladder("0.2 Gbit/s", 2e8, (1, 2, 4, 8), ("hidden", "exposed"), 0.2, 16 << 10),
)


@dataclass(frozen=True)
class Row:
    """A run, and what was predicted for it; times in seconds."""

    link: str
    workload: str
    hosts: int
    measured: float
    predicted: float
    error: float
    """The standard error that the prediction names."""
    from_one_host: float
    from_one_host_error: float
    fabric: bool
    """Whether the processors that carry all hosts' bytes were taken for a switch that is slower than its links."""


Runs = dict[str, dict[int, dict[str, Any]]]
"""The fastest turn of each run, by workload and number of hosts, as the training prints it."""


def measure(ladder: Ladder, environ: Mapping[str, str], turns: int, known: Runs) -> Runs:
    """Return the fastest turn of each run.

    Args:
        ladder: the runs.
        environ: the environment of the ranks.
        turns: how often each run is made.
        known: earlier turns.

    Raises:
        processes.ProcessError: there can be no hosts here, or a run failed.
    """
    best: Runs = {name: dict(known.get(name, {})) for name in ladder.workloads}
    link = Link(ladder.label, ladder.rate, least_burst=ladder.burst)
    for _ in range(turns):
        for count in ladder.hosts:
            with _cluster(count, link) as hosts:
                for name in ladder.workloads:
                    arguments = [name, str(STEPS), str(ladder.scale), str(ladder.rate)]
                    found = network.run(hosts, TRAINING, arguments, environ, DEADLINE)
                    before = best[name].get(count)
                    if before is None or _median(found) < _median(before):
                        best[name][count] = found
    return best


def fabric(environ: Mapping[str, str], count: int = 4) -> float:
    """Return the bits per second that `count` hosts send together where nothing but this machine limits them."""
    best = 0.0
    for _ in range(TURNS):
        with _cluster(count, Link("unlimited")) as hosts:
            found = network.run(hosts, TRAINING, ["exposed", "5", "1", "1e12"], environ, DEADLINE)
        batches = JobProfile.from_json(found["profile"], "the run").gradients
        sent = [2 * (count - 1) * batch.bytes * 8 / batch.seconds for batch in batches if batch.seconds]
        best = max(best, statistics.median(sent))
    return best


@contextlib.contextmanager
def _cluster(count: int, link: Link) -> Iterator[list[Host]]:
    with (
        tempfile.TemporaryDirectory(prefix="distrun-bench-") as work,
        network.cluster(count, link, Path(work) / "hosts") as hosts,
    ):
        yield hosts


def rows(ladder: Ladder, best: Runs, limit: float) -> Iterator[Row]:
    """Yield what was measured on more than 2 hosts beside what is predicted for it."""
    for name, runs in best.items():
        one, two = (JobProfile.from_json(runs[count]["profile"], "the run") for count in (1, 2))
        for count in ladder.hosts:
            if count <= 2:
                continue
            by_two = predict(two, None, count, limit)
            by_one = predict(one, MeasuredLink(ladder.rate), count, limit)
            yield Row(
                ladder.label,
                name,
                count,
                _median(runs[count]),
                by_two.seconds,
                by_two.error,
                by_one.seconds,
                by_one.error,
                limit < count * ladder.rate,
            )


def predict(profile: JobProfile, link: MeasuredLink | None, hosts: int, limit: float) -> Forecast:
    """Return the prediction for a rank on each of so many hosts, which together send no more than `limit`."""
    assumed = assumptions(profile, link, None, None, hosts, 1).with_fabric(limit)
    return forecasts(profile, assumed, [hosts], 1, False)[0]


def table(found: Sequence[Row]) -> str:
    """Return the rows as Markdown, and a sentence of each column of errors."""
    lines = ["| link | workload | hosts | measured | from 2 hosts | error | from 1 host | error |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in found:
        mark = " (*)" if row.fabric else ""
        lines.append(
            f"| {row.link}{mark} | {row.workload} | {row.hosts} | {row.measured * 1e3:.0f} ms "
            f"| {row.predicted * 1e3:.0f} +- {row.error * 1e3:.0f} ms | {row.predicted / row.measured - 1:+.1%} "
            f"| {row.from_one_host * 1e3:.0f} +- {row.from_one_host_error * 1e3:.0f} ms "
            f"| {row.from_one_host / row.measured - 1:+.1%} |"
        )
    for label in dict.fromkeys(row.link for row in found):
        lines.append(f"\n{label}: " + summary([row for row in found if row.link == label]))
    return "\n".join([*lines, "\nAll: " + summary(found)])


def summary(found: Sequence[Row]) -> str:
    """Return how far the predictions are from what was measured."""
    two = [abs(row.predicted / row.measured - 1) for row in found]
    one = [abs(row.from_one_host / row.measured - 1) for row in found]
    within = sum(abs(row.predicted - row.measured) <= row.error for row in found)
    return (
        f"{len(found)} runs; from 2 hosts median error {statistics.median(two):.1%}, largest {max(two):.1%}, "
        f"{sum(error <= 0.05 for error in two)} within 5 %, {within} within one standard error; "
        f"from 1 host median {statistics.median(one):.1%}, largest {max(one):.1%}."
    )


def save(found: Sequence[Row], runs: Mapping[str, Runs], limit: float, file: Path) -> None:
    """Write everything as JSON, the runs by link."""
    file.write_text(json.dumps({"fabric": limit, "rows": [asdict(row) for row in found], "runs": runs}) + "\n")


def load(file: Path) -> tuple[dict[str, Runs], float]:
    """Return the runs and the limit that `save` has written."""
    found = json.loads(file.read_text())
    runs = {
        label: {name: {int(count): run for count, run in turns.items()} for name, turns in kinds.items()}
        for label, kinds in found["runs"].items()
    }
    return runs, found["fabric"]


def _median(found: Mapping[str, Any]) -> float:
    return statistics.median(found["steps"])
