"""Losses: the parts of gradients that compression has taken and nothing has made up for yet, whatever the framework.

Each rank has losses of its own, in elements of its own gradient: whatever reduces the gradient next, with whichever
others and however many ranks, adds them to it. So they outlive new plans, generations of an elastic job and, averaged
over the ranks, the job.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from distrun.contract.settings import current
from distrun.runtime.operations.wire import ENCODED_DTYPES, WITH_FEEDBACK, is_small
from distrun.runtime.world import world
from distrun.tensor_fusion.low_rank import is_worthwhile, rank_of


class Residual(NamedTuple):
    """The loss of one gradient, in arrays of numpy or tensors of torch."""

    lost: Any = None
    """Float32, of the gradient's shape: to be added to this rank's next gradient. None if there is nothing."""
    q: Any = None
    """Where the gradient is approximated, the matrix with which the next approximation begins, the same on all ranks;
    see `distrun.tensor_fusion.low_rank`."""


def warn_of_dropped(what: str) -> None:
    """Warn that what `what` has lost will not be made up for."""
    warnings.warn(
        f"the checkpoint has what compression had taken from {what}, which is dropped, as they travel whole from now "
        "on; compress them as before, by int4 or PowerSGD, to have it made up for",
        stacklevel=2,
    )


def may_need_feedback(wire: str) -> bool:
    """Return whether gradients that travel so may lose as much as has to be made up for, on whichever ranks."""
    return rank_of(wire) > 0 or (wire or current().wire_dtype) == WITH_FEEDBACK


def has_error_feedback(wire: str, dtype: str, shape: Sequence[int]) -> bool:
    """Return whether what a gradient loses on the wire is made up for later; the same on all ranks."""
    if rank := rank_of(wire):
        return is_worthwhile(shape, rank)
    topology = world.topology()
    if topology.local_size == topology.size:
        return False  # nothing is quantised
    return may_need_feedback(wire) and dtype in ENCODED_DTYPES and not is_small(shape)
