"""Predictions with their error bars.

The error bar is honest before it is small: what was assumed counts with its whole uncertainty, and a model that misses
the step that was measured says so in all its predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from distrun.runner.observation.prediction.link import Assumptions
from distrun.runner.observation.prediction.model import Network, PredictedStep, Work, largest_saving, step, work_of
from distrun.runner.observation.prediction.profile import JobProfile

MODEL_ERROR = 0.03
"""The relative standard error of the model itself if all its inputs are measured. See docs/predicting.md."""
JITTER_ERROR = 0.5
"""The relative standard error of the slowest rank's delay, as real distributions have a longer tail."""

_JSON_NAMES = {"seconds": "step_s", "error": "step_error_s", "waiting": "waiting_s", "straggling": "straggling_s"}


@dataclass(frozen=True)
class Forecast:
    """A prediction for one number of hosts."""

    hosts: int
    ranks: int
    seconds: float
    """The time of a step."""
    error: float
    """Its standard error in seconds: two of three steps are within it."""
    speedup: float
    """Samples per second, as a multiple of one rank's rate alone."""
    efficiency: float
    """The speed-up per rank."""
    efficiency_error: float
    bound: str
    """The part that would shorten the step most if it took no time: compute, network or input."""
    waiting: float
    """Seconds of a step that are spent waiting for the network."""
    straggling: float
    """Seconds that the slowest rank is expected to be late."""

    def to_json(self) -> dict[str, Any]:
        """Return the members of this prediction in `distrun predict --json`."""
        return {_JSON_NAMES.get(name, name): value for name, value in vars(self).items()}


def forecasts(
    profile: JobProfile, assumed: Assumptions, hosts: Sequence[int], ranks_per_host: int, keeps_global_batch: bool
) -> list[Forecast]:
    """Return a prediction for each number of hosts.

    With `keeps_global_batch`, the global batch stays the same, instead of the batch of each rank.
    """
    usual = work_of(profile)
    deviation = residual(profile, assumed)
    predicted = []
    for count in hosts:
        ranks = count * ranks_per_host
        # The time that one rank alone would take for the same samples.
        work, alone = usual, usual.alone * ranks
        if keeps_global_batch:
            work, alone = usual.share(profile.ranks / ranks), usual.share(profile.ranks).alone
        found = step(work, count, ranks_per_host, assumed.network)
        error = _error(work, assumed, deviation, count, ranks_per_host, found)
        speedup = alone / found.seconds if found.seconds else float(ranks)
        predicted.append(
            Forecast(
                hosts=count,
                ranks=ranks,
                seconds=found.seconds,
                error=error,
                speedup=speedup,
                efficiency=speedup / ranks,
                efficiency_error=speedup / ranks * (error / found.seconds if found.seconds else 0.0),
                bound=largest_saving(work, count, ranks_per_host, assumed.network),
                waiting=found.waiting,
                straggling=found.straggling,
            )
        )
    return predicted


def residual(profile: JobProfile, assumed: Assumptions) -> float:
    """Return the relative error of the model for the job itself: predicted step / measured step - 1."""
    measured = profile.seconds.step
    if not measured or assumed.job_network is None:
        return 0.0
    return step(work_of(profile), profile.hosts, profile.ranks_per_host, assumed.job_network).seconds / measured - 1


def _error(
    work: Work, assumed: Assumptions, deviation: float, hosts: int, ranks_per_host: int, found: PredictedStep
) -> float:
    """Return the standard error of a step, combined from the uncertain inputs and the model itself."""
    network = assumed.network
    parts = [found.straggling * JITTER_ERROR, found.seconds * deviation]
    if hosts * ranks_per_host > 1:
        parts.append(found.seconds * MODEL_ERROR)
    if hosts > 1 and assumed.efficiency_deviation:
        low, high = (
            step(work, hosts, ranks_per_host, _with_efficiency(network, sign * assumed.efficiency_deviation)).seconds
            for sign in (1, -1)
        )
        parts.append((high - low) / 2)
    return float(sum(part**2 for part in parts) ** 0.5)


def _with_efficiency(network: Network, change: float) -> Network:
    return replace(network, efficiency=min(max(network.efficiency + change, 0.05), 1.0))
