"""Losses: the parts of gradients that compression has taken and nothing has made up for yet.

Each rank has losses of its own, in elements of its own gradient: whatever reduces the gradient next, in whichever
bucket and with however many ranks, adds them to it. So they outlive a new plan of the buckets, a new generation of an
elastic job, and, averaged over the ranks, the job.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Loss(NamedTuple):
    """The loss of one parameter's gradient."""

    lost: Tensor | None = None
    """Float32, of the parameter's shape: to be added to this rank's next gradient."""
    q: Tensor | None = None
    """Where the gradient is approximated, the matrix with which the next approximation begins, the same on all ranks;
    see `distrun.tensor_fusion.low_rank`."""
