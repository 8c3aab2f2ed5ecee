"""How well a job uses its network, from the operations that it has measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from distrun.runner.observation.prediction.model import host_bytes, local_bytes, messages
from distrun.runner.observation.prediction.profile import Gradients, JobProfile

_DISTINCT = 4.0  # how many times larger the largest operation must be, to tell what each costs from what a byte costs
_LOWEST, _HIGHEST = 0.02, 1.0  # of what a link has


@dataclass(frozen=True)
class Calibration:
    """A rate and a price per operation, from measured operations."""

    rate: float
    """Bytes per second: of a host's link, or of a rank within its host."""
    deviation: float
    """The relative standard deviation of the rate over the operations."""
    overhead: float
    """Seconds that each operation takes beyond its bytes and messages."""


def between_hosts(profile: JobProfile, latency: float) -> Calibration | None:
    """Return what operations between hosts have reached; None if none was measured."""
    if profile.hosts == 1:
        return None
    return _fitted(
        [
            (host_bytes(batch.wire_bytes, profile.hosts), taken - messages(batch.wire_bytes, profile.hosts) * latency)
            for batch, taken in _measured(profile)
        ]
    )


def within_host(profile: JobProfile) -> Calibration | None:
    """Return what operations within one host have reached; None if none was measured without other hosts."""
    if profile.hosts > 1 or profile.ranks == 1:
        return None
    return _fitted([(local_bytes(batch.bytes, profile.ranks), taken) for batch, taken in _measured(profile)])


def efficiency(rate: float, bits_per_s: float) -> float:
    """Return the share of a link that a rate in bytes per second is, if that can be."""
    return min(max(rate * 8 / bits_per_s, _LOWEST), _HIGHEST)


def _measured(profile: JobProfile) -> list[tuple[Gradients, float]]:
    return [(batch, batch.seconds) for batch in profile.gradients if batch.seconds and batch.bytes]


def _fitted(operations: list[tuple[float, float]]) -> Calibration | None:
    """Return the line through bytes and seconds; through the origin when the sizes are much alike."""
    operations = [(size, taken) for size, taken in operations if taken > 0]
    if not operations:
        return None
    sizes, times = [size for size, _ in operations], [taken for _, taken in operations]
    overhead = 0.0
    if max(sizes) >= _DISTINCT * min(sizes):
        # Each operation counts by its relative error: otherwise the small ones, of which a line's begin is made, would
        # count for nothing.
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
