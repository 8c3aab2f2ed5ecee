"""Reducing a list of gradients in a graph: fused into few calls, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from distrun.contract import settings
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.gradient_settings import GradientSettings
from distrun.runtime.operations.reduction import Adasum
from distrun.runtime.world import world
from distrun.tensor_fusion.buckets import DEFAULT_THRESHOLD, GradientInfo
from distrun.tensor_fusion.graph_calls import CONCATENATED_UP_TO, plan_calls
from distrun.tensor_fusion.low_rank import rank_of

Tensor = TypeVar("Tensor")


@dataclass(frozen=True)
class OptimizerSettings(GradientSettings):
    """The settings of the optimizers and tapes of Keras and TensorFlow, which may have local variables."""

    scale_local: bool = True
    """Whether local gradients are divided by the number of ranks."""
    factor: float = 1.0
    """Multiplies the gradients before they are reduced, and local ones."""


class Toolkit(Protocol[Tensor]):
    """The operations that fusing needs of a framework's tensors in a graph."""

    def item(self, tensor: Tensor, /) -> GradientInfo | None:
        """The tensor's bytes and dtype; None when its shape is not known yet."""
        ...

    def join(self, tensors: Sequence[Tensor], /) -> Tensor:
        """One flat tensor of the elements of several, which have one dtype."""
        ...

    def cut(self, joined: Tensor, like: Sequence[Tensor], /) -> Sequence[Tensor]:
        """The inverse of `join`: tensors of the shapes of `like`."""
        ...


def reduce_gradients(
    gradients: Sequence[Tensor],
    collective: Call,
    toolkit: Toolkit[Tensor],
    call: Callable[[Sequence[Tensor], Call], Sequence[Tensor]],
) -> list[Tensor]:
    """Return the allreduced `gradients`; `call` puts one collective on several dense tensors into the graph.

    Between hosts there are several calls, from the last gradient to the first, so that they may overlap with the
    backward pass.
    """
    if collective.op is Adasum:  # which combines each tensor by itself
        return list(call(gradients, collective))
    reduced = list(gradients)
    small = 0 if _is_lossy(collective) else CONCATENATED_UP_TO
    plan = plan_calls([toolkit.item(gradient) for gradient in gradients], _threshold(), small)
    for number, part in enumerate(plan):
        joined = [[gradients[place] for place in group] for group in part.joined]
        tensors = [gradients[place] for place in part.alone] + [toolkit.join(group) for group in joined]
        one = collective._replace(first=part.alone[0]) if collective.gradients and part.alone else collective
        results = call(tensors, one.named(str(number)) if number else one)
        for place, result in zip(part.alone, results, strict=False):
            reduced[place] = result
        for places, group, result in zip(part.joined, joined, results[len(part.alone) :], strict=True):
            for place, piece in zip(places, toolkit.cut(result, group), strict=True):
                reduced[place] = piece
    return reduced


def _is_lossy(collective: Call) -> bool:
    """Return whether large tensors of a call travel quantised, or matrices approximated: they must be told from others.

    Ranks of elastic jobs plan alike however many hosts there were when they traced their functions.
    """
    wire = collective.wire or settings.current().wire_dtype
    return wire in settings.QUANTISED or rank_of(wire) > 0


def _threshold() -> int | None:
    """Within a host calls move memory, which the backward pass needs for itself: overlapping them gains nothing. Ranks
    of elastic jobs may have traced their functions when the job had one host, and newcomers when it has several: they
    plan alike."""
    topology = world.topology()
    return DEFAULT_THRESHOLD if topology.local_size < topology.size or world.is_elastic() else None
