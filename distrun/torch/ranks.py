"""Joining the job."""

from __future__ import annotations

from typing import Any

from distrun.runtime import initialisation, world
from distrun.torch import cuda


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, with the arguments of `distrun.init`.

    Where there are GPUs, the one of this rank becomes torch's current one.
    """
    initialisation.init(comm, process_sets)
    device = world.device()
    if device.name == cuda.CUDA:
        cuda.bind(device.index)
