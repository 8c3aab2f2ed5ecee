"""How much of its network's speed a job uses, fitted to its measured operations."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from distrun.runner.observation.prediction.model import host_bytes, local_bytes, messages
from distrun.runner.observation.prediction.profile import Gradients, JobProfile

_DISTINCT = 4.0  # least ratio of largest to smallest operation for a fit of overhead and rate


@dataclass(frozen=True)
class Calibration:
    """A rate and an overhead per operation, fitted to measured operations."""

    rate: float
    """Bytes per second, of a host's link or of a rank within its host."""
    deviation: float
    """The relative standard deviation of the rate over the operations."""
    overhead: float
    """Seconds that each operation takes beyond the time of its bytes and messages."""


def between_hosts(profile: JobProfile, latency: float) -> Calibration | None:
    """Return the calibration of operations between hosts, or None if none was measured."""
    if profile.hosts == 1:
        return None
    return _fitted(
        [
            (host_bytes(batch.wire_bytes, profile.hosts), taken - messages(batch.wire_bytes, profile.hosts) * latency)
            for batch, taken in _measured(profile)
        ]
    )


def within_host(profile: JobProfile) -> Calibration | None:
    """Return the calibration of operations within one host, or None if none was measured on one host alone."""
    if profile.hosts > 1 or profile.ranks == 1:
        return None
    return _fitted([(local_bytes(batch.bytes, profile.ranks), taken) for batch, taken in _measured(profile)])


def _measured(profile: JobProfile) -> list[tuple[Gradients, float]]:
    return [(batch, batch.seconds) for batch in profile.gradients if batch.seconds and batch.bytes]


def _fitted(operations: list[tuple[float, float]]) -> Calibration | None:
    """Return the linear fit of seconds to bytes, through the origin if the sizes are similar."""
    operations = [(size, taken) for size, taken in operations if taken > 0]
    if not operations:
        return None
    sizes, times = [size for size, _ in operations], [taken for _, taken in operations]
    overhead = 0.0
    if max(sizes) >= _DISTINCT * min(sizes):
        # Weighted by relative error. With equal weights, the small operations, which determine the intercept, would
        # hardly count.
        weights = [1 / taken**2 for taken in times]
        total = sum(weights)
        mean_size = math.fsum(w * size for w, size in zip(weights, sizes, strict=True)) / total
        mean_time = math.fsum(w * taken for w, taken in zip(weights, times, strict=True)) / total
        spread = math.fsum(w * (size - mean_size) ** 2 for w, size in zip(weights, sizes, strict=True))
        common = math.fsum(
            w * (size - mean_size) * (taken - mean_time) for w, size, taken in zip(weights, sizes, times, strict=True)
        )
        overhead = min(max(mean_time - common / spread * mean_size, 0.0), min(times) * 0.9)
    rate = sum(sizes) / sum(taken - overhead for taken in times)
    rates = [size / (taken - overhead) for size, taken in operations]
    deviation = statistics.pstdev(rates) / statistics.fmean(rates) if len(rates) > 1 else 0.0
    return Calibration(rate, deviation, overhead)
