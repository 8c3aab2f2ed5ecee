"""The configuration of a rank's GPU."""

from __future__ import annotations

from dataclasses import dataclass

from distrun.runtime.operations.timeouts import FOREVER, Timeouts


@dataclass(frozen=True)
class GpuConfig:
    """Which GPU a rank uses, and what it needs to know of the job."""

    index: int
    """The GPU's number, as this process counts them."""
    hostname: str
    may_share: bool = False
    """Whether ranks may share a GPU."""
    is_shared: bool = False
    """Whether several ranks of this host were given this GPU."""
    timeouts: Timeouts = FOREVER
    transport: str = "auto"
    """How tensors are to travel between GPUs: auto, nccl or staged; that of a group's first rank counts."""
    is_elastic: bool = False
    """Whether the rank may survive the end of its world. Then a thread that waits for an operation waits for the device
    too, so that a step which has failed there does not go on here, and change the weights."""
