"""Joining the job."""

from __future__ import annotations

from distrun.runtime import world
from distrun.torch import cuda


def init() -> None:
    """Join the job: see `distrun.init`. Where there are GPUs, the one of this rank becomes torch's current one."""
    world.init()
    device = world.device()
    if device.name == cuda.CUDA:
        cuda.bind(device.index)
