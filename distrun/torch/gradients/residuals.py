"""Averaging the residuals of compression over the ranks. See `distrun.runtime.collectives.residuals`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from distrun.runtime.collectives.compressors import Compression
from distrun.runtime.collectives.residuals import Residual
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.torch.reductions import grouped_allreduce


def merged(
    parameters: Sequence[Tensor], residuals: Mapping[Tensor, Residual], name: str, process_set: ProcessSet
) -> dict[Tensor, Residual]:
    """Return the average over the ranks of the residuals of `parameters`, which are the same list on all ranks. `name`
    is
    the operation's name.

    Raises:
        CollectiveError: as `distrun.torch.allreduce` raises.
    """
    if not parameters:
        return {}
    own = [residuals.get(parameter, Residual()) for parameter in parameters]
    lost = [
        torch.zeros_like(parameter, dtype=torch.float32)
        if residual.lost is None
        else residual.lost.to(parameter.device)
        for parameter, residual in zip(parameters, own, strict=True)
    ]
    lost = grouped_allreduce(lost, name=name, compression=Compression.bf16, process_set=process_set)
    return {
        parameter: Residual(average, residual.q)
        for parameter, average, residual in zip(parameters, lost, own, strict=True)
    }
