"""The configuration of a rank's GPU."""

from __future__ import annotations

from dataclasses import dataclass

from distrun.runtime.operations.timeouts import FOREVER, Timeouts


@dataclass(frozen=True)
class GpuConfig:
    """The GPU that a rank uses, and the facts about the job that it needs."""

    index: int
    """The GPU's number, as this process counts them."""
    hostname: str
    may_share: bool = False
    """Whether ranks may share a GPU."""
    is_shared: bool = False
    """Whether several ranks of this host were given this GPU."""
    timeouts: Timeouts = FOREVER
    transport: str = "auto"
    """The transport between GPUs: auto, nccl or staged. The value of a group's first rank counts."""
    is_elastic: bool = False
    """Whether the rank may survive the end of its world. If so, a thread that waits for an operation waits for the
    device, too, so that a training step that fails on the device does not continue on the host and change the
    weights."""
