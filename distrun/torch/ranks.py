"""Joining the job."""

from __future__ import annotations

from typing import Any

from distrun.runtime import initialisation, world
from distrun.torch import cuda


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job: see `distrun.init`, whose arguments it takes. Where there are GPUs, the one of this rank becomes torch's current one."""
    initialisation.init(comm, process_sets)
    device = world.device()
    if device.name == cuda.CUDA:
        cuda.bind(device.index)
