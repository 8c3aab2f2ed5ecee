"""The ranks' average of what compression has taken from the gradients of parameters; see
`distrun.runtime.collectives.losses`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from distrun.runtime.collectives.losses import Loss
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.torch.compression import Compression
from distrun.torch.reductions import grouped_allreduce


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
