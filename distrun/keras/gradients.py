"""The reduction of the gradients that a Keras optimizer is given, whichever backend Keras has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrun.errors import UsageError
from distrun.graphs import signatures
from distrun.keras import internals
from distrun.runtime import collectives, world
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.consistency import compare, describe
from distrun.runtime.collectives.gradient_settings import GradientSettings

# Attributes of an optimizer:
_AGREED = "_distrun_agreed"  # the engine and the variables that were compared, and what came of it
_STEP = "_distrun_step"  # what the first operation of a step is called

BEGINNING = "keras.fit"
"""The name of the operations in which ranks compare their models before the first step of `fit`."""

_WHAT = "the trainable variables of the model"


@dataclass(frozen=True)
class Settings(GradientSettings):
    """The way gradients are reduced; see `DistributedOptimizer` for the meaning."""

    factor: float = 1.0
    """Multiplies the gradients before they are reduced."""


Reduce = Callable[[Sequence[Any], Sequence[Any], Call, bool], list[Any]]
"""Reduces gradients (None among them) of variables with a collective; the flag is `sparse_as_dense`."""


def _backend() -> Reduce:
    if internals.BACKEND == "torch":
        from distrun.keras import torch_gradients

        return torch_gradients.reduce
    if internals.BACKEND == "tensorflow":
        from distrun.graphs.tensorflow import reduce_gradients as reduce_tensorflow

        return lambda gradients, _, collective, sparse_as_dense: reduce_tensorflow(
            gradients, collective, sparse_as_dense
        )
    if internals.BACKEND == "jax":
        from distrun.graphs.jax import reduce_gradients as reduce_jax

        return lambda gradients, _, collective, __: reduce_jax(gradients, collective)
    raise UsageError(
        f"distrun.keras does not train on the Keras backend {internals.BACKEND!r}: set KERAS_BACKEND to tensorflow, "
        "jax or torch"
    )


_reduce = _backend()


@internals.not_compiled
def reduce(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], settings: Settings) -> list[Any]:
    """The gradients of all ranks together. In a world of one they are as they were.

    Raises:
        MismatchError: the ranks do not have the same variables.
    """
    if settings.factor != 1.0:
        gradients = [None if gradient is None else gradient * settings.factor for gradient in gradients]
    if world.size() == 1 or not gradients:
        return list(gradients)
    how = _collective(optimizer, variables, settings, _missing(gradients))
    internals.attach(optimizer, _STEP, _first_operation(gradients, how))
    return _reduce(gradients, variables, how, settings.sparse_as_dense)


def _missing(gradients: Sequence[Any]) -> frozenset[int]:
    """The places of gradients that there are not, on any rank: one's first might otherwise be added to another's
    second."""
    if internals.BACKEND == "torch":  # where ranks may differ in that, see torch_gradients
        return frozenset()
    return frozenset(place for place, gradient in enumerate(gradients) if gradient is None)


def _collective(
    optimizer: Any, variables: Sequence[Any], settings: Settings, missing: frozenset[int] = frozenset()
) -> Call:
    """The collective that reduces the gradients of these variables. The ranks compare them when they are first seen."""
    engine, identity = world.engine(), (tuple(map(id, variables)), missing)
    agreed = getattr(optimizer, _AGREED, None)
    if agreed is not None and agreed[0] is engine and agreed[1] == identity:
        return agreed[2]
    entries = [entry + " without gradient" * (place in missing) for place, entry in enumerate(_entries(variables))]
    number = signatures.signature_id(entries, _WHAT)
    result = settings.call(f"keras.gradients.{number}", "a training step")
    internals.attach(optimizer, _AGREED, (engine, identity, result))
    return result


def entry_of(variable: Any) -> str:
    """Return a variable's entry in the list that ranks compare."""
    name = getattr(variable, "path", None) or variable.name
    return describe(signatures.canonical_name(name), variable.shape, variable.dtype)


def _entries(variables: Sequence[Any]) -> list[str]:
    return [entry_of(variable) for variable in variables]


def begin(model: Any) -> None:
    """Before the first step of `fit`: the ranks compare their models, whatever they have compared before.

    So ranks that differ get an error even if one of them has trained such a model already, and each knows, before it
    makes a step, what the steps of the others are called. If a model is not built yet, that waits for the first step.

    Raises:
        MismatchError: the ranks do not have the same variables.
    """
    optimizer = model.optimizer
    internals.attach(optimizer, _AGREED, None)
    if not all_built(model, BEGINNING):
        return
    variables = model.trainable_variables
    compare(_entries(variables), _WHAT, BEGINNING)
    how = _collective(optimizer, variables, type(optimizer).distrun_settings)
    is_eager = internals.BACKEND == "jax" and model.run_eagerly
    internals.attach(optimizer, _STEP, f"eager.{how.name}" if is_eager else how.name)


def all_built(model: Any, name: str) -> bool:
    """Whether the model has its variables on all ranks. `name` is the operation's."""
    return bool(collectives.allgather(np.array([internals.is_built(model)]), name).all())


def _first_operation(gradients: Sequence[Any], collective: Call) -> str | None:
    """Return the name of the first operation on the gradients."""
    if internals.BACKEND != "jax":
        return collective.name
    from distrun.graphs.jax.mechanism import is_traced

    return collective.name if is_traced(gradients) else f"eager.{collective.name}"


def name_of_step(optimizer: Any) -> str | None:
    """Return the name of the first operation of each of the optimizer's steps; None if it is not known yet."""
    agreed = getattr(optimizer, _AGREED, None)
    return getattr(optimizer, _STEP) if agreed is not None and agreed[0] is world.engine() else None
