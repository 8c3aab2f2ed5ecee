"""The allocation of a batch scheduler: reads its variables, files and answers into hosts with their slots.

`slurm` and `flux` read the allocation of one scheduler each, and `host_files` those of the others. `current` finds the
one that this process runs under, if any.
"""

from __future__ import annotations

from collections.abc import Mapping

from distrun.runner.planning.allocation import flux, host_files, slurm
from distrun.runner.planning.allocation.allocated import Allocation
from distrun.runner.planning.allocation.slurm import is_own_node

__all__ = ["Allocation", "current", "is_own_node"]

# Flux comes first: it is often started inside a Slurm allocation, and may have given this process a part of that only.
_READERS = (flux.read, slurm.read, host_files.pbs, host_files.lsf, host_files.grid_engine)


def current(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that this process runs in, or None outside of any.

    Raises:
        UsageError: the scheduler's variables or files cannot be understood.
    """
    return next((found for read in _READERS if (found := read(environ)) is not None), None)
