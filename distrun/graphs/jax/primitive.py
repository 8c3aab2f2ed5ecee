"""Collectives as a primitive of JAX, executed by `handler` in program order. Only this module uses JAX's internals.

Order is kept in one of two ways. In general, the primitive has an *ordered effect*: every program takes a token from
the program dispatched before it, and passes it on from collective to collective, through loops, branches and functions.
But JAX dispatches programs with effects in Python, at about 10 us per argument and result, which a training step would
pay for each parameter. So in the main function of a program, as in a jitted training step, a collective has no effect
that JAX knows of, and takes the last token that was made in this function. The CPU client of XLA runs programs that one
thread has dispatched one after the other. For GPUs, XLA does not promise that: one of its clients runs programs in a
pool of threads, each as soon as its arguments exist. So where JAX computes on a GPU, every collective has the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import jax
import jax.core
import jax.extend.core
import jax.numpy as jnp
from jax._src import core, effects
from jax._src.interpreters import partial_eval
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import ad, batching, mlir

from distrun.errors import UsageError
from distrun.graphs.jax import handler
from distrun.graphs.jax.derivatives import backward, check_differentiable
from distrun.graphs.jax.shapes import REDUCING, result_shape
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.dtypes import name_of

_ONE_DEVICE = (
    "a collective of distrun is part of a program for several devices of one rank: start a rank for each device, or "
    "use JAX's own collectives between them"
)


class _Effect(effects.Effect):
    def __repr__(self) -> str:  # JAX's error message shows this when it rejects the effect
        return _ONE_DEVICE


_effect = _Effect()
# Lowered inline, not in a separate function that is called from there. Older versions of JAX always do this.
_UNCACHED = {"cacheable": False} if "cacheable" in signature(mlir.register_lowering).parameters else {}
_call_p = jax.extend.core.Primitive("distrun_collective")
_runs_in_order = True
"""Whether XLA runs the programs that one thread has dispatched one after the other."""


def call(arrays: Sequence[Any], collective: Call) -> list[Any]:
    """Return the results of a collective on traced arrays."""
    return _bind(arrays, collective, _runs_in_order and _are_in_main(arrays))


def _bind(arrays: Sequence[Any], collective: Call, is_in_main: bool) -> list[Any]:
    return list(_call_p.bind(*arrays, collective=collective, is_in_main=is_in_main))


def _are_in_main(arrays: Sequence[Any]) -> bool:
    """Return whether operations on these traced arrays will be in the main function of a program.

    They are if, going outwards through derivatives and batches, the first function that is being traced is the
    outermost trace.
    """
    traces = {array._trace for array in arrays if isinstance(array, jax.core.Tracer)}
    for trace in traces:
        while not isinstance(trace, partial_eval.DynamicJaxprTrace):
            trace = getattr(trace, "parent_trace", None)
            if trace is None:
                return False
        if not isinstance(getattr(trace, "parent_trace", None), core.EvalTrace):
            return False
    return True


def install(eager: Callable[[Sequence[Any], Call], Sequence[Any]], on_gpu: bool = False) -> None:
    """Register the primitive with JAX, for programs on the CPU and, if `on_gpu`, on NVIDIA GPUs.

    `eager` executes a collective on concrete arrays, after all transformations.
    """
    global _runs_in_order
    handler.register()
    if on_gpu:
        from distrun.graphs.jax import cuda_handler

        cuda_handler.register()
        mlir.register_lowering(_call_p, _lower, platform="cuda", **_UNCACHED)
        _runs_in_order = False
    for allowed in (
        effects.lowerable_effects,
        effects.ordered_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
    ):
        allowed.add_type(_Effect)
    _call_p.multiple_results = True
    _call_p.def_effectful_abstract_eval(_abstract)
    mlir.register_lowering(_call_p, _lower, platform="cpu", **_UNCACHED)
    _call_p.def_impl(lambda *arrays, collective, is_in_main: eager(arrays, collective))
    ad.primitive_jvps[_call_p] = _jvp
    ad.primitive_transposes[_call_p] = _transpose
    batching.primitive_batchers[_call_p] = _batch
    # Kept even if this rank does not use the results: other ranks may, and would wait for this one.
    partial_eval.dce_rules[_call_p] = lambda used_results, equation: ([True] * len(equation.invars), equation)


# Shapes and lowering -------------------------------------------------------------------------------------------------


def _abstract(*avals: Any, collective: Call, is_in_main: bool) -> tuple[list[Any], set[Any]]:
    results = [jax.core.ShapedArray(result_shape(collective, aval.shape), aval.dtype) for aval in avals]
    return results, set() if is_in_main else {_effect}


def _lower(ctx: Any, *operands: Any, collective: Call, is_in_main: bool) -> Sequence[Any]:
    """Return the results of a call of the handler, which has a token as its first argument and result."""
    _check_devices(ctx.module_context.axis_context)
    if not is_in_main:
        # Under another name, since collectives in main are not ordered with those in a function called from it.
        collective = collective._replace(name=f"inner.{collective.name}")
        token, *results = _call_handler(ctx, ctx.tokens_in.get(_effect), operands, collective)
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_effect: token})))
        return results
    return _call_handler(ctx, _last_token(collective), operands, collective)[1:]


def _check_devices(context: Any) -> None:
    mesh = getattr(context, "mesh", None)
    if (getattr(context, "num_devices", 1) or 1) > 1 or (mesh is not None and mesh.size > 1):
        raise UsageError(_ONE_DEVICE)


def _call_handler(ctx: Any, token: Any, operands: Sequence[Any], collective: Call) -> Sequence[Any]:
    dtypes = [name_of(jnp.dtype(aval.dtype)) for aval in ctx.avals_in]
    text = handler.encode(collective, dtypes, [aval.shape for aval in ctx.avals_in])
    ctx = ctx.replace(avals_in=[core.abstract_token, *ctx.avals_in], avals_out=[core.abstract_token, *ctx.avals_out])
    places = range(1, len(operands) + 1) if collective.kind in REDUCING else ()
    lowering = jax.ffi.ffi_lowering(
        handler.TARGET, has_side_effect=True, operand_output_aliases={place: place for place in places}
    )
    return lowering(ctx, token, *operands, text=text)


def _last_token(collective: Call) -> Any:
    """Return the last token in the function that is being lowered, which must be main, or a new one."""
    block = ir.InsertionPoint.current.block
    function = block.owner.operation
    if function.name != "func.func" or ir.StringAttr(function.attributes["sym_name"]).value != "main":
        raise UsageError(
            f"{collective.kind} {collective.name!r} is in a jitted function that was first called by itself and is now "
            "called by another jitted function, so that its place in the order is not known: call jax.clear_caches() "
            "in between"
        )
    kind = hlo.TokenType.get()
    for operation in reversed(list(block.operations)):
        for result in operation.results:
            if result.type == kind:
                return result
    return hlo.create_token()


# Transformations -----------------------------------------------------------------------------------------------------


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, collective: Call, is_in_main: bool
) -> tuple[Sequence[Any], list[Any]]:
    """Apply the collective to the tangents, since it is linear.

    Integers and booleans have no tangents. All other tangents are included, even if they are zero on this rank: all
    ranks must execute the same collective.
    """
    check_differentiable(collective)
    results = _bind(primals, collective, is_in_main)
    places = [place for place, primal in enumerate(primals) if jnp.issubdtype(jnp.result_type(primal), jnp.inexact)]
    moved = _bind([ad.instantiate_zeros(tangents[place]) for place in places], collective, is_in_main)
    tangents_out = [ad.Zero(jax.core.ShapedArray(result.shape, jax.dtypes.float0)) for result in results]
    for place, tangent in zip(places, moved, strict=True):
        tangents_out[place] = tangent
    return results, tangents_out


def _transpose(cotangents: Sequence[Any], *inputs: Any, collective: Call, is_in_main: bool) -> Sequence[Any]:
    shapes = [given.aval.shape for given in inputs]
    bind = partial(_bind, is_in_main=is_in_main)
    return backward(collective, shapes, [ad.instantiate_zeros(cotangent) for cotangent in cotangents], bind)


def _batch(
    arrays: Sequence[Any], axes: Sequence[Any], *, collective: Call, is_in_main: bool
) -> tuple[Sequence[Any], list[Any]]:
    """Apply the collective to the whole batch at once, with the batch axis after the axis of rows."""
    target = 0 if collective.kind in REDUCING else 1
    moved = [
        array if axis is None else jnp.moveaxis(array, axis, target) for array, axis in zip(arrays, axes, strict=True)
    ]
    return _bind(moved, collective, is_in_main), [None if axis is None else target for axis in axes]
