"""What a rank's GPU has to know of the job."""

from __future__ import annotations

from dataclasses import dataclass

from distrun.runtime.operations.timeouts import FOREVER, Timeouts


@dataclass(frozen=True)
class GpuConfig:
    """Which GPU, and among whom."""

    index: int
    """The GPU's number, as this process counts them."""
    hostname: str
    hosts: int = 1
    """How many hosts the job has."""
    may_share: bool = False
    """Whether ranks may share a GPU."""
    timeouts: Timeouts = FOREVER
