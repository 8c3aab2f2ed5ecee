"""Predictions with their error bars.

The error bar is honest before it is small: what was assumed counts with its whole uncertainty, and a model that misses
the step that was measured says so in all its predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from distrun.runner.observation.prediction.link import Assumptions
from distrun.runner.observation.prediction.model import Network, Work, largest_saving, step, work_of
from distrun.runner.observation.prediction.profile import JobProfile

MODEL_ERROR = 0.03
"""The relative standard error of the model itself, where all its inputs are measured: docs/predicting.md."""
JITTER_ERROR = 0.5
"""How uncertain the time is that the slowest rank loses: the longer tail of real distributions."""


@dataclass(frozen=True)
class Forecast:
    """A prediction for one number of hosts."""

    hosts: int
    ranks: int
    seconds: float
    """The time of a step."""
    error: float
    """Its standard error, in seconds: two of three steps are at most so far from the prediction."""
    speedup: float
    """Samples per second, as a multiple of what one rank computes by itself."""
    efficiency: float
    """The speed-up per rank."""
    efficiency_error: float
    bound: str
    """The name of what would shorten the step most if it took no time: compute, network or input."""
    waiting: float
    """Seconds of a step that are spent waiting for the network."""
    straggling: float
    """Seconds by which the slowest rank is expected to be late."""

    def to_json(self) -> dict[str, Any]:
        """Return the members of this prediction in `distrun predict --json`."""
        return {
            "hosts": self.hosts,
            "ranks": self.ranks,
            "step_s": self.seconds,
            "step_error_s": self.error,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "efficiency_error": self.efficiency_error,
            "bound": self.bound,
            "waiting_s": self.waiting,
            "straggling_s": self.straggling,
        }


def forecasts(
    profile: JobProfile, assumed: Assumptions, hosts: Sequence[int], ranks_per_host: int, keeps_global_batch: bool
) -> list[Forecast]:
    """Return a prediction for each number of hosts.

    Args:
        profile: what the job has measured.
        assumed: the network, and how far it is to be trusted.
        hosts: the numbers of hosts.
        ranks_per_host: the ranks of each host.
        keeps_global_batch: the batch of all ranks together stays as it is, instead of that of each rank.
    """
    usual = work_of(profile)
    deviation = residual(profile, assumed)
    return [_forecast(usual, profile, assumed, deviation, n, ranks_per_host, keeps_global_batch) for n in hosts]


def residual(profile: JobProfile, assumed: Assumptions) -> float:
    """Return by which factor, less 1, the model misses the step that the job itself has measured."""
    measured = profile.seconds.step
    if not measured or assumed.job_network is None:
        return 0.0
    return step(work_of(profile), profile.hosts, profile.ranks_per_host, assumed.job_network).seconds / measured - 1


def _forecast(
    usual: Work,
    profile: JobProfile,
    assumed: Assumptions,
    deviation: float,
    hosts: int,
    ranks_per_host: int,
    keeps_global_batch: bool,
) -> Forecast:
    ranks = hosts * ranks_per_host
    # What one rank would take for the batch that is compared with: its own, or that of all.
    work, alone = usual, usual.alone * ranks
    if keeps_global_batch:
        work, alone = usual.share(profile.ranks / ranks), usual.share(profile.ranks).alone
    found = step(work, hosts, ranks_per_host, assumed.network)
    error = _error(work, assumed, deviation, hosts, ranks_per_host, found.seconds, found.straggling)
    speedup = alone / found.seconds if found.seconds else float(ranks)
    return Forecast(
        hosts=hosts,
        ranks=ranks,
        seconds=found.seconds,
        error=error,
        speedup=speedup,
        efficiency=speedup / ranks,
        efficiency_error=speedup / ranks * (error / found.seconds if found.seconds else 0.0),
        bound=largest_saving(work, hosts, ranks_per_host, assumed.network),
        waiting=found.waiting,
        straggling=found.straggling,
    )


def _error(
    work: Work,
    assumed: Assumptions,
    deviation: float,
    hosts: int,
    ranks_per_host: int,
    seconds: float,
    straggling: float,
) -> float:
    """Return the standard error of a step: what each uncertain input changes, and the model's own."""
    network = assumed.network
    parts = [straggling * JITTER_ERROR, seconds * deviation]
    if hosts * ranks_per_host > 1:
        parts.append(seconds * MODEL_ERROR)
    if hosts > 1 and assumed.efficiency_deviation:
        low, high = (
            step(work, hosts, ranks_per_host, _with_efficiency(network, sign * assumed.efficiency_deviation)).seconds
            for sign in (1, -1)
        )
        parts.append((high - low) / 2)
    return float(sum(part**2 for part in parts) ** 0.5)


def _with_efficiency(network: Network, change: float) -> Network:
    return replace(network, efficiency=min(max(network.efficiency + change, 0.05), 1.0))
