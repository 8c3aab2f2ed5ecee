"""Synthetic training: ranks that sleep where others compute, and reduce gradients on the way back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """The work of each rank in a step; times in seconds."""

    name: str
    forward: float
    backward: float
    sizes: tuple[int, ...]
    """Bytes of the batches of gradients, in the order in which they become ready."""
    ready: tuple[float, ...]
    """When each of them is ready, as a part of the backward pass."""
    jitter: float = 0.0
    """The standard deviation of the backward pass, each rank's and each step's own."""


def _even(count: int) -> tuple[float, ...]:
    return tuple((index + 1) / count for index in range(count))


MB = 1_000_000

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("hidden", 0.150, 0.350, (3 * MB,) * 4, _even(4)),
        Workload("exposed", 0.150, 0.350, (10 * MB,) * 4, _even(4)),
        Workload("large first", 0.150, 0.350, (24 * MB, 2 * MB, 2 * MB, 2 * MB), (0.10, 0.40, 0.70, 1.0)),
        Workload("jitter", 0.150, 0.350, (3 * MB,) * 4, _even(4), jitter=0.025),
    )
}
"""The workloads. On 1 Gbit/s, gradients of `hidden` and `jitter` hide behind the backward pass, others do not."""
