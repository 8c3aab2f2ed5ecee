"""Published figures beside what the model says of them, with a share of the link and a jitter fitted to all others.

No source gives what a profile has, so these inputs are assumed for all of them: a third of the computing is forward and
two thirds are backward; gradients become ready evenly on the way back (those of VGG-16's fully connected layers, 89 %
of its gradients, in its first 5 %) and are reduced in batches of 64 MB, 25 MB with DDP, which are the defaults of these
programs; one ring through all ranks (NCCL's), whose hops take 10 us; nothing is lost within a host. What a source lacks
besides is said in its rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.prediction.tables import ASSUMED, MODELS, SETUPS, SOURCES, VGG16, Setup
from distrun.runner.observation.prediction.model import Network, Work, slowest, step
from distrun.runner.observation.prediction.profile import Gradients

EFFICIENCIES = tuple(share / 100 for share in range(10, 101, 2))
JITTERS = tuple(part / 1000 for part in range(0, 61, 4))
"""Standard deviations of a rank's computing, as parts of it."""
_HOP = 10e-6
_NOT_WITHIN = 1e15  # bytes per second: nothing is lost within a host


@dataclass(frozen=True)
class Point:
    """One published figure."""

    setup: Setup
    hosts: int
    efficiency: float
    """The samples per second of a rank, divided by those of one rank, or of a rank of one host."""

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.hosts * self.setup.ranks_per_host


@dataclass(frozen=True)
class Fitted:
    """A point, and what is predicted for it without it."""

    point: Point
    predicted: float
    share: float
    """The share of a link."""
    jitter: float

    @property
    def miss(self) -> float:
        """The points by which the prediction is too high."""
        return 100 * (self.predicted - self.point.efficiency)


def points() -> list[Point]:
    """Return all published figures as efficiencies."""
    return [
        Point(setup, hosts, value if value <= 1 else value / hosts / setup.ranks_per_host / _alone(setup))
        for setup in SETUPS
        for hosts, value in setup.found
    ]


def leave_one_out(group: Sequence[Point], by_source: bool = False, by_transport: bool = True) -> list[Fitted]:
    """Return a prediction for each point, from a fit to others.

    Args:
        group: all points.
        by_source: no point of its source is among the others, instead of just not itself.
        by_transport: TCP and RDMA have shares of their own.
    """
    surfaces = [surface(point) for point in group]
    fitted = []
    for index, point in enumerate(group):
        others = [
            number
            for number, other in enumerate(group)
            if (other.setup.source != point.setup.source if by_source else number != index)
        ]
        shares, jitter = fit(group, surfaces, others, by_transport)
        share = shares[point.setup.transport]
        fitted.append(Fitted(point, surfaces[index][share, jitter], share, jitter))
    return fitted


Surface = dict[tuple[float, float], float]
"""The predicted efficiency by share of a link and jitter."""


def fit(
    group: Sequence[Point], surfaces: Sequence[Surface], chosen: Sequence[int], by_transport: bool = True
) -> tuple[dict[str, float], float]:
    """Return each transport's share of a link, and the jitter, that miss the chosen points least in the mean."""
    names = sorted({point.setup.transport for point in group})
    sets = [[name] for name in names] if by_transport else [names]
    best: tuple[float, dict[str, float], float] | None = None
    for jitter in JITTERS:
        missed, shares = 0.0, {}
        for transports in sets:
            those = [number for number in chosen if group[number].setup.transport in transports]
            least, share = min(
                (sum(abs(surfaces[number][share, jitter] - group[number].efficiency) for number in those), share)
                for share in EFFICIENCIES
            )
            missed += least
            shares |= dict.fromkeys(transports, share)
        if best is None or missed < best[0]:
            best = missed, shares, jitter
    assert best is not None
    return best[1], best[2]


def surface(point: Point) -> Surface:
    """Return the predicted efficiency for all shares of a link and jitters."""
    return {(share, jitter): predict(point, share, jitter) for share in EFFICIENCIES for jitter in JITTERS}


def predict(point: Point, share: float, jitter: float) -> float:
    """Return the efficiency that the model gives."""
    setup = point.setup
    measured = setup.batch / _alone(setup)
    # What was measured is the slowest of the base's ranks.
    computing = measured / (1 + jitter * slowest(setup.base_ranks))
    work = Work(
        computing / 3, computing * 2 / 3, 0.0, 0.0, computing * jitter, tuple(_batches(point, computing * 2 / 3))
    )
    ring = 2 * (point.ranks - 1)
    network = Network(setup.link * 1e9, share, 0.0, _NOT_WITHIN, overhead=ring * _HOP)
    return measured / step(work, point.hosts, setup.ranks_per_host, network).seconds


def _alone(setup: Setup) -> float:
    """Return the samples per second of one of the base's ranks."""
    return setup.base / setup.base_ranks


def _batches(point: Point, backward: float) -> Iterator[Gradients]:
    total = point.setup.model * 4e6
    limit = 25e6 if point.setup.program == "PyTorch DDP" else 64e6
    count = -(-total // limit)
    # A ring through all ranks has each host send 2(N-1)/N of an array, the model's exchange between n hosts 2(n-1)/n.
    ring = (1 - 1 / point.ranks) / (1 - 1 / point.hosts)
    for index in range(int(count)):
        done = (index + 1) / count
        ready = done
        if point.setup.model == VGG16:
            ready = 0.05 * done / 0.89 if done <= 0.89 else 0.05 + 0.95 * (done - 0.89) / 0.11
        yield replace(Gradients(total / count, ready * backward, 0.0), wire_bytes=total / count * ring)


def from_first_rows(group: Sequence[Point], jitter: float) -> list[Fitted]:
    """Return predictions for the larger numbers of hosts of a setup, from the share of the link that fits its first
    row best: what a job predicts that has been measured on few hosts."""
    fitted = []
    for setup in SETUPS:
        first, *others = [point for point in group if point.setup is setup]
        share = min(EFFICIENCIES, key=lambda share: abs(predict(first, share, jitter) - first.efficiency))
        fitted += [Fitted(point, predict(point, share, jitter), share, jitter) for point in others]
    return fitted


def table() -> str:
    """Return all points as Markdown, and sentences that sum them up."""
    group = points()
    found, strict = leave_one_out(group), leave_one_out(group, by_source=True)
    single = leave_one_out(group, by_transport=False)
    lines = ["| source | program | model, batch | hosts x ranks | link | published | predicted | error | assumed |"]
    lines.append("| --- | --- | --- | --- | --- | ---: | ---: | ---: | --- |")
    for item in found:
        setup = item.point.setup
        lines.append(
            f"| {setup.source} | {setup.program} | {MODELS[setup.model]}, {setup.batch} "
            f"| {item.point.hosts} x {setup.ranks_per_host} | {setup.link:g} {setup.transport} "
            f"| {item.point.efficiency:.1%} | {item.predicted:.1%} | {item.miss:+.1f} | {setup.assumed} |"
        )
    lines += ["", *(f"- {key}: {name}" for key, name in SOURCES.items())]
    lines += ["", *(f"- {key}: {what}" for key, what in ASSUMED.items() if key)]
    lines += ["", "Each point left out: " + summary(found), "Each source left out: " + summary(strict)]
    lines.append("Each point left out, one share for both transports: " + summary(single))
    values = [point.efficiency for point in group]
    guessed = [
        100 * abs(statistics.median(values[:index] + values[index + 1 :]) - value) for index, value in enumerate(values)
    ]
    lines.append(
        f"For comparison, the median of the other points as the prediction for each: median error "
        f"{statistics.median(guessed):.1f} points, mean {statistics.fmean(guessed):.1f}."
    )
    surfaces = [surface(point) for point in group]
    _, jitter = fit(group, surfaces, range(len(group)))
    lines.append("Setups with several rows, from their first: " + summary(from_first_rows(group, jitter)))
    for by_transport in (True, False):
        shares, jitter = fit(group, surfaces, range(len(group)), by_transport)
        said = ", ".join(f"{name} {share:.0%} of a link" for name, share in shares.items())
        lines.append(f"Fitted to all: {said}; jitter {jitter:.1%}.")
    for transport in ("RDMA", "TCP"):
        those = [item for item in found if item.point.setup.transport == transport]
        lines.append(f"{transport}: " + summary(those))
    for source in dict.fromkeys(point.setup.source for point in group):
        lines.append(f"{source}: " + summary([item for item in found if item.point.setup.source == source]))
    return "\n".join(lines)


def summary(found: Sequence[Fitted]) -> str:
    """Return how far predictions are from what was published."""
    misses = [abs(item.miss) for item in found]
    shares = sorted({item.share for item in found})
    return (
        f"{len(misses)} points; median error {statistics.median(misses):.1f} points, mean "
        f"{statistics.fmean(misses):.1f}, largest {max(misses):.1f}; {sum(miss <= 5 for miss in misses)} within 5, "
        f"{sum(miss <= 10 for miss in misses)} within 10; share of a link {shares[0]:.0%} to {shares[-1]:.0%}."
    )
