"""Residuals for error feedback: the parts of gradients that compression has dropped and not yet added back.

Each rank has its own residuals, one per gradient, with the gradient's shape. The next reduction of the gradient adds
them to it, however gradients are fused then and however many ranks there are. So residuals survive new fusion plans and
new generations of an elastic job. Averaged over the ranks, they are saved in checkpoints.
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
    """The residual of one gradient, in arrays of numpy or tensors of torch."""

    lost: Any = None
    """float32, of the gradient's shape: is added to this rank's next gradient. None if nothing was dropped."""
    q: Any = None
    """For low-rank approximations, the matrix that the next one starts from, the same on all ranks (see
    `distrun.tensor_fusion.low_rank`)."""


def warn_of_dropped(what: str) -> None:
    """Warn that the residuals of `what` in a checkpoint are discarded."""
    warnings.warn(
        f"discarding the compression residuals that the checkpoint holds for {what}, which this run does not compress; "
        "to keep them, use int4 or PowerSGD as before",
        stacklevel=2,
    )


def may_need_feedback(wire: str) -> bool:
    """Return whether any gradient on the wire type `wire` may have error feedback, in whatever world."""
    return rank_of(wire) > 0 or (wire or current().wire_dtype) == WITH_FEEDBACK


def has_error_feedback(wire: str, dtype: str, shape: Sequence[int]) -> bool:
    """Return whether a gradient of `dtype` and `shape` on the wire type `wire` has error feedback. The same on all
    ranks."""
    if rank := rank_of(wire):
        return is_worthwhile(shape, rank)
    topology = world.topology()
    if topology.local_size == topology.size:
        return False  # nothing is quantised
    return may_need_feedback(wire) and dtype in ENCODED_DTYPES and not is_small(shape)
