"""The derivatives of the collectives, the same as in `distrun.torch` and in Horovod.

In general, each rank has its own loss, and gradients are of the sum of all losses, except that the gradients of
allgather and broadcast are averaged instead of summed. A wrapped optimizer averages in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from distrun.errors import UsageError
from distrun.graphs.jax.shapes import PROBE, Shape
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.world import world

Perform = Callable[[Sequence[Any], Call], list[Any]]


def check_differentiable(collective: Call) -> None:
    """Raise a UsageError for an allreduce whose operator is neither Average nor Sum: it has no gradient."""
    if collective.kind == "allreduce" and collective.op not in (Average, Sum):
        raise UsageError(
            f"allreduce with op={collective.op} has no gradient here: reduce jax.lax.stop_gradient(array) instead"
        )


def backward(collective: Call, shapes: Sequence[Shape], cotangents: Sequence[Any], call: Perform) -> list[Any]:
    """Return the cotangents of a collective's inputs, which have `shapes`, given the `cotangents` of its results."""
    gradient = collective.named("gradient")
    if collective.kind in ("allreduce", "alltoall", PROBE):
        return call(cotangents, gradient)
    if collective.kind == "reducescatter":
        return _gathered(gradient, shapes, cotangents, call)
    averaged = call(cotangents, gradient._replace(kind="allreduce", op=Average, root=-1))
    if collective.kind == "broadcast":
        return averaged if world.rank() == collective.root else [jnp.zeros_like(array) for array in averaged]
    place = collective.process_set.rank()
    return [whole[place * shape[0] : (place + 1) * shape[0]] for whole, shape in zip(averaged, shapes, strict=True)]


def _gathered(gradient: Call, shapes: Sequence[Shape], cotangents: Sequence[Any], call: Perform) -> list[Any]:
    size = gradient.process_set.size()
    for shape in shapes:
        if shape[0] % size:
            raise UsageError(
                f"reducescatter of {shape[0]} rows among {size} ranks has no gradient here: pad it to a multiple of "
                f"{size}"
            )
    factor = gradient.prescale * gradient.postscale / (size if gradient.op is Average else 1)
    plain = gradient._replace(kind="allgather", op=Average, prescale=1.0, postscale=1.0)
    return [whole * factor for whole in call(cotangents, plain)]
