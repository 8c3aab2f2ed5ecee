"""The allocation of a batch scheduler: its variables, files and words in, hosts with their slots out.

One file per scheduler. `current` finds the one that this process runs under, if any.
"""

from __future__ import annotations

from collections.abc import Mapping

from distrun.runner.planning.allocation import flux, grid_engine, lsf, pbs, slurm
from distrun.runner.planning.allocation.allocated import Allocation
from distrun.runner.planning.allocation.slurm import is_own_node

__all__ = ["Allocation", "current", "is_own_node"]

# Flux comes first: it is often started inside an allocation of Slurm's, of which it may have given us a part.
_READERS = (flux.read, slurm.read, pbs.read, lsf.read, grid_engine.read)


def current(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that this process runs in, None when it runs in none.

    Raises:
        UsageError: the scheduler's variables or files cannot be understood.
    """
    return next((found for read in _READERS if (found := read(environ)) is not None), None)
