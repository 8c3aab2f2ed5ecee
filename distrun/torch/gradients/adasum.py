"""Adasum of an optimizer's steps: each rank takes a step by its own gradients, and the ranks combine their updates.

The steps are combined rather than the gradients, as in Horovod, so that adaptive optimizers scale each rank's gradient
by itself. See `distrun.runtime.backends.adasum` for the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime.collectives.compressors import Compressor
from distrun.runtime.operations.reduction import Adasum
from distrun.runtime.process_sets.process_set import ProcessSet
from distrun.torch.reductions import grouped_allreduce


@dataclass(frozen=True)
class StepCombiner:
    """Takes the steps of one optimizer."""

    name: str
    """How the ranks match the operations."""
    compression: Compressor
    process_set: ProcessSet

    def step(self, parameters: Sequence[Tensor], plain_step: Callable[[], Any]) -> Any:
        """Take this rank's step, then move the parameters by the Adasum of all ranks' steps.

        Args:
            parameters: the parameters that the step may change: the same, with the same values, on all ranks.
            plain_step: takes the step.

        Returns:
            The result of `plain_step`.

        Raises:
            CollectiveError: as `distrun.torch.grouped_allreduce` raises.
        """
        starts = [parameter.detach().clone() for parameter in parameters]
        result = plain_step()
        with torch.no_grad():
            deltas = [parameter.detach() - start for parameter, start in zip(parameters, starts, strict=True)]
            combined = grouped_allreduce(
                deltas, name=self.name, compression=self.compression, op=Adasum, process_set=self.process_set
            )
            for parameter, start, delta in zip(parameters, starts, combined, strict=True):
                parameter.copy_(start.add_(delta))
        return result


def check_predivide(factor: float) -> None:
    """Refuse a predivide factor, since Adasum does not average.

    Raises:
        UsageError: the factor is not 1.
    """
    if factor != 1.0:
        raise UsageError(f"gradient_predivide_factor={factor} is for op=Average, and this is op=Adasum: leave it out")
