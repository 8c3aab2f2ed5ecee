"""Joining the job, and having no more data than others."""

from __future__ import annotations

from typing import Any

from distrun.runtime import initialisation, world
from distrun.runtime.collectives import synchronisation
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.torch import cuda
from distrun.torch.gradients.recording import record


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, with the arguments of `distrun.init`.

    Where there are GPUs, the one of this rank becomes torch's current one.
    """
    initialisation.init(comm, process_sets)
    record()
    device = world.device()
    if device.name == cuda.CUDA:
        cuda.bind(device.index)


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """Say that this rank has no more data, and return when all ranks have said so: see `distrun.join`.

    Args:
        device: accepted for Horovod's sake.
        process_set: the ranks that take part.

    Returns:
        The last rank to join.
    """
    return synchronisation.join(process_set)
