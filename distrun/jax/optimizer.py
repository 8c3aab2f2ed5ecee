"""DistributedOptimizer: any gradient transformation of optax, on gradients reduced over the ranks."""

from __future__ import annotations

from typing import Any

import optax

from distrun.errors import UsageError
from distrun.jax.gradients import GradientReduction
from distrun.runtime.collectives.compressors import Compression, Compressor, wire_only
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set


class Distributed(optax.GradientTransformationExtraArgs):
    """The gradient transformation that `DistributedOptimizer` returns."""


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: optax.GradientTransformation,
    op: ReduceOp = Average,
    compression: Compressor = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Distributed:
    """Make a transformation work on the gradients of all ranks: `DistributedOptimizer(optax.adam(1e-3))`.

    Its `update` reduces the gradients, and then calls the transformation's `update`. So wrap last: in
    `DistributedOptimizer(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)))` all parts see the same
    gradients on all ranks, and every rank has the same state. To reduce only every k-th step, wrap inside:
    `optax.MultiSteps(DistributedOptimizer(...), k)`.

    Args:
        optimizer: any `optax.GradientTransformation`, with or without extra arguments. The form of its state does not
            change.
        op: `Average`, `Sum`, `Min`, `Max` or `Product`.
        compression: the form in which gradients travel between hosts (see `Compression`).
        gradient_predivide_factor: a value f divides gradients by f before they are summed, and by size / f afterwards
            (Average only).
        process_set: the ranks that train together.

    Raises:
        UsageError: an argument is impossible, or the transformation is wrapped already.
    """
    _check(optimizer)
    reduction = GradientReduction(
        op, gradient_predivide_factor, wire_only(compression, of_gradients=True), process_set=process_set
    )
    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return inner.update(reduction.reduce(updates, "the gradients"), state, params, **extra)

    return Distributed(inner.init, update)


def _check(optimizer: object) -> None:
    if isinstance(optimizer, Distributed):
        raise UsageError("this gradient transformation is a DistributedOptimizer already: wrap an optimizer once")
    if not isinstance(optimizer, optax.GradientTransformation):
        kind = type(optimizer)
        faces = {"torch": "distrun.torch", "keras": "distrun.keras", "tensorflow": "distrun.tensorflow"}
        families = [base.__module__.partition(".")[0] for base in kind.__mro__]
        face = next((faces[family] for family in families if family in faces), None)
        remedy = f"that of {face} is for this one" if face else "give it one, such as optax.adam(1e-3)"
        raise UsageError(
            "DistributedOptimizer of distrun.jax wraps an optax.GradientTransformation, not a "
            f"{kind.__module__}.{kind.__qualname__}: {remedy}"
        )
