"""Losses: the parts of gradients that compression has taken and nothing has made up for yet.

Each rank has losses of its own, in elements of its own gradient: whatever reduces the gradient next, in whichever
bucket and with however many ranks, adds them to it. So they outlive a new plan of the buckets, a new generation of an
elastic job, and, averaged over the ranks, the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distrun.runtime import world
from distrun.runtime.operations.wire import NARROWED, WITH_FEEDBACK, is_small
from distrun.runtime.process_set import ProcessSet
from distrun.runtime.settings import current
from distrun.tensor_fusion.low_rank import is_worthwhile, rank_of
from distrun.torch.compression import Compression
from distrun.torch.reductions import grouped_allreduce
from distrun.torch.tensors import dtype_name


class Loss(NamedTuple):
    """The loss of one parameter's gradient."""

    lost: Tensor | None = None
    """Float32, of the parameter's shape: to be added to this rank's next gradient."""
    q: Tensor | None = None
    """Where the gradient is approximated, the matrix with which the next approximation begins, the same on all ranks;
    see `distrun.tensor_fusion.low_rank`."""


def is_made_up_for(wire: str, parameter: Tensor) -> bool:
    """Return whether what a parameter's gradients lose on the wire is made up for later; the same on all ranks."""
    if rank := rank_of(wire):
        return is_worthwhile(parameter.shape, rank)
    topology, wire = world.topology(), wire or current().wire_dtype
    if topology.local_size == topology.size:
        return False  # nothing is quantised
    return wire == WITH_FEEDBACK and dtype_name(parameter) in NARROWED and not is_small(parameter.shape)


def merged(
    parameters: Sequence[Tensor], losses: Mapping[Tensor, Loss], name: str, process_set: ProcessSet
) -> dict[Tensor, Loss]:
    """Return the ranks' average of the losses of `parameters`, the same list on all; `name` is the operation's.

    Raises:
        CollectiveError: as `distrun.torch.allreduce` raises.
    """
    if not parameters:
        return {}
    own = [losses.get(parameter, Loss()) for parameter in parameters]
    lost = [
        torch.zeros_like(parameter, dtype=torch.float32) if loss.lost is None else loss.lost.to(parameter.device)
        for parameter, loss in zip(parameters, own, strict=True)
    ]
    lost = grouped_allreduce(lost, name=name, compression=Compression.bf16, process_set=process_set)
    return {parameter: Loss(average, loss.q) for parameter, average, loss in zip(parameters, lost, own, strict=True)}
