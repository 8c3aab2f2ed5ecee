"""Gradients reduced over the ranks: for optax, and for scripts that call `jax.grad` themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from distrun.graphs import residuals as residuals, signatures
from distrun.graphs.jax import reduce_gradients
from distrun.jax.trees import entries
from distrun.runtime.collectives.compressors import Compression, Compressor, wire_only
from distrun.runtime.collectives.gradient_settings import GradientSettings
from distrun.runtime.operations.call_site import call_site
from distrun.runtime.operations.reduction import Average, ReduceOp
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set

_World = global_process_set


class GradientReduction(GradientSettings):
    """Reduces gradients according to its settings."""

    def reduce(self, tree: Any, what: str) -> Any:
        """Return the tree reduced over the ranks. When its leaves are first seen, the ranks compare them.

        `what`: the name of the leaves in the error message.
        """
        described = entries(tree)
        number = signatures.signature_id(described, what)
        call = residuals.named(self.call(f"jax.gradients.{number}", call_site()), described)
        leaves, structure = jax.tree_util.tree_flatten(tree)
        return jax.tree_util.tree_unflatten(structure, reduce_gradients(leaves, call))


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    op: ReduceOp = Average,
    compression: Compressor = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = _World,
    **options: Any,
) -> Callable[..., Any]:
    """Return `jax.value_and_grad(fun)` with value and gradients reduced over the ranks. By default they are averaged:
    of a loss that is the mean over a batch, the result is the mean over all ranks' batches.

    The value is reduced together with the gradients, and auxiliary data (`has_aux`) stays this rank's. Use it with a
    plain optimizer, not with a `DistributedOptimizer`, which reduces gradients itself. `options` go to
    `jax.value_and_grad`.
    """
    reduction = GradientReduction(
        op, gradient_predivide_factor, wire_only(compression, of_gradients=True), process_set=process_set
    )
    local = jax.value_and_grad(fun, argnums, has_aux, **options)

    @wraps(fun)
    def value_and_gradients(*args: Any, **kwargs: Any) -> Any:
        outcome, gradients = local(*args, **kwargs)
        value, aux = outcome if has_aux else (outcome, None)
        value, gradients = reduction.reduce((value, gradients), "the value and the gradients")
        return ((value, aux) if has_aux else value), gradients

    return value_and_gradients


def grad(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    op: ReduceOp = Average,
    compression: Compressor = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = _World,
    **options: Any,
) -> Callable[..., Any]:
    """Return `jax.grad(fun)` with the gradients reduced over the ranks. See `value_and_grad`."""
    reduction = GradientReduction(
        op, gradient_predivide_factor, wire_only(compression, of_gradients=True), process_set=process_set
    )
    local = jax.grad(fun, argnums, has_aux, **options)

    @wraps(fun)
    def gradients(*args: Any, **kwargs: Any) -> Any:
        outcome = local(*args, **kwargs)
        own, aux = outcome if has_aux else (outcome, None)
        reduced = reduction.reduce(own, "the gradients")
        return (reduced, aux) if has_aux else reduced

    return gradients
