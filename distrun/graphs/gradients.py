"""The reduction of a list of gradients in a graph: fuses them into few calls, for any framework."""

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
    """The operations on a framework's tensors in a graph that fusing needs."""

    def item(self, tensor: Tensor, /) -> GradientInfo | None:
        """Return the tensor's bytes and dtype, or None if its shape is not known yet."""
        ...

    def join(self, tensors: Sequence[Tensor], /) -> Tensor:
        """Return one flat tensor with the elements of `tensors`, which have the same dtype."""
        ...

    def cut(self, joined: Tensor, like: Sequence[Tensor], /) -> Sequence[Tensor]:
        """Return the tensors that were joined, with the shapes of `like`: the inverse of `join`."""
        ...


def reduce_gradients(
    gradients: Sequence[Tensor],
    collective: Call,
    toolkit: Toolkit[Tensor],
    call: Callable[[Sequence[Tensor], Call], Sequence[Tensor]],
) -> list[Tensor]:
    """Return the allreduced `gradients`. `call` puts one collective on several dense tensors into the graph.

    With several hosts, there are several calls, from the last gradient to the first, so that they may overlap with the
    backward pass.
    """
    if collective.op is Adasum:  # combines each tensor by itself
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
    """Return whether a call quantises large tensors or approximates matrices, which must therefore not be joined.

    The result does not depend on the number of hosts, so ranks of elastic jobs make the same plan whenever they traced
    their functions.
    """
    wire = collective.wire or settings.current().wire_dtype
    return wire in settings.QUANTISED or rank_of(wire) > 0


def _threshold() -> int | None:
    """Return the bytes of a bucket, or None for one call.

    Within a host, calls compete for memory bandwidth with the backward pass, so overlapping them gains nothing. In
    elastic jobs, the result does not depend on the hosts: old ranks may have traced their functions when the job had
    one host, and new ones when it has several, and all must make the same plan.
    """
    topology = world.topology()
    return DEFAULT_THRESHOLD if topology.local_size < topology.size or world.is_elastic() else None
