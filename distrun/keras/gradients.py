"""The reduction of the gradients of a Keras optimizer, in Keras 3 and Keras 2, on every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from distrun.errors import UsageError
from distrun.graphs import residuals as residuals, signatures
from distrun.graphs.gradients import OptimizerSettings
from distrun.graphs.local_variables import LocalVariables, scaled
from distrun.keras.library import Library, attach
from distrun.runtime import collectives
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.compressors import compressed
from distrun.runtime.collectives.consistency import compare, describe
from distrun.runtime.collectives.residuals import may_need_feedback
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world

# Attributes of an optimizer:
_AGREED = "_distrun_agreed"  # the engine, the variables that the ranks compared, and the resulting `Call`
_STEP = "_distrun_step"  # the name of the first operation of a step
_FEEDBACK = "_distrun_feedback"  # what `Distributed.distrun_feedback` returns
LOCAL = "_distrun_local"
"""The attribute of an optimizer that holds its local variables."""

OUTER = "_distrun_outer"
"""The attribute of an optimizer that holds its `OuterSteps` (`distrun.keras.low_communication.diloco`), if any."""

BEGINNING = "keras.fit"
"""The name of the operations in which ranks compare their models before the first step of `fit`."""

_WHAT = "the trainable variables of the model"


class Distributed:
    """The class that `DistributedOptimizer` mixes into an optimizer's."""

    distrun_library: ClassVar[Library]
    distrun_settings: ClassVar[OptimizerSettings]
    distrun_plain: ClassVar[type]

    @property
    def distrun_feedback(self) -> Any:
        """The `ErrorFeedback` that `distrun.checkpoint` saves with the optimizer, or None if compression keeps no
        residuals."""
        settings = self.distrun_settings
        if settings.process_set is not global_process_set or not may_need_feedback(settings.wire):
            return None
        if _FEEDBACK not in vars(self):
            from distrun.graphs.error_feedback import ErrorFeedback

            attach(self, _FEEDBACK, ErrorFeedback())
        return vars(self)[_FEEDBACK]

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of `var` on this rank. It is not reduced but, unless `scale_local_gradients` is False,
        divided by the number of ranks."""
        local_variables(self).add(var)


def local_variables(optimizer: Any) -> LocalVariables:
    """Return an optimizer's local variables, to read and to add to."""
    known = vars(optimizer).get(LOCAL)
    if known is None:
        known = LocalVariables()
        attach(optimizer, LOCAL, known)
    return known


def outer_steps_of(optimizer: Any) -> Any:
    """Return the outer steps of an optimizer, or None if it takes none."""
    return getattr(optimizer, OUTER, None)


Reduce = Callable[[Sequence[Any], Sequence[Any], Call, bool], list[Any]]
"""Reduces gradients (some may be None) of variables by a collective call. The flag is `sparse_as_dense`."""


@lru_cache
def _reduction_on(backend: str) -> Reduce:
    if backend == "torch":
        from distrun.keras import torch_gradients

        return torch_gradients.reduce
    if backend == "tensorflow":
        from distrun.graphs.tensorflow import reduce_gradients as reduce_tensorflow

        return lambda gradients, _, collective, sparse_as_dense: reduce_tensorflow(
            gradients, collective, sparse_as_dense
        )
    if backend == "jax":
        from distrun.graphs.jax import reduce_gradients as reduce_jax

        return lambda gradients, _, collective, __: reduce_jax(gradients, collective)
    raise UsageError(
        f"distrun.keras does not train on the Keras backend {backend!r}: set KERAS_BACKEND to tensorflow, jax or torch"
    )


def reduce(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return the gradients of all ranks together, which must have the same variables. In a world of one, and on ranks
    outside the process set, they stay as they were.
    """
    settings = optimizer.distrun_settings
    ranks = settings.process_set
    gradients = [scaled(gradient, settings.factor) for gradient in gradients]
    is_tensorflow = optimizer.distrun_library.BACKEND == "tensorflow"
    if settings.is_alone():
        if is_tensorflow:
            from distrun.graphs.tensorflow.facts import stay_out

            stay_out(ranks)
        return gradients

    def share() -> Any:
        return 1.0 / _size(ranks, is_tensorflow) if settings.scale_local else 1.0

    return local_variables(optimizer).apart(gradients, variables, share, partial(_reduce, optimizer))


def _size(ranks: ProcessSet, is_tensorflow: bool) -> Any:
    """Return the number of ranks. For TensorFlow it is a tensor, since a graph may outlive this world."""
    if not is_tensorflow:
        return ranks.size()
    import tensorflow as tf

    from distrun.graphs.tensorflow.facts import number

    return number(ranks.size, tf.float32)


def _reduce(optimizer: Any, gradients: list[Any], variables: list[Any]) -> list[Any]:
    if not gradients:
        return []
    settings, backend = optimizer.distrun_settings, optimizer.distrun_library.BACKEND
    how = _collective(optimizer, variables, _missing(gradients, backend))
    attach(optimizer, _STEP, _first_operation(gradients, how, backend))
    reduction = _reduction_on(backend)
    return compressed(
        settings.compression, gradients, lambda tensors: reduction(tensors, variables, how, settings.sparse_as_dense)
    )


def _missing(gradients: Sequence[Any], backend: str) -> frozenset[int]:
    """Return the places of gradients that are None. The ranks compare them, or one rank's first gradient might be added
    to another rank's second."""
    if backend == "torch":  # where ranks may differ in that, see torch_gradients
        return frozenset()
    return frozenset(place for place, gradient in enumerate(gradients) if gradient is None)


def _collective(optimizer: Any, variables: Sequence[Any], missing: frozenset[int] = frozenset()) -> Call:
    """Return the call that reduces the gradients of these variables. The ranks compare the variables when they are
    first seen."""
    engine, identity = world.engine(), (tuple(map(id, variables)), missing)
    agreed = getattr(optimizer, _AGREED, None)
    if agreed is not None and agreed[0] is engine and agreed[1] == identity:
        return agreed[2]
    settings = optimizer.distrun_settings
    entries = [entry + " without gradient" * (place in missing) for place, entry in enumerate(_entries(variables))]
    number = signatures.signature_id(entries, _WHAT, settings.process_set)
    result = residuals.named(settings.call(f"keras.gradients.{number}", "a training step"), entries)
    attach(optimizer, _AGREED, (engine, identity, result))
    return result


def entry_of(variable: Any) -> str:
    """Return a variable's entry in the list that ranks compare."""
    name = getattr(variable, "path", None) or variable.name
    dtype = getattr(variable.dtype, "name", variable.dtype)  # TensorFlow's variables have an object there
    return describe(signatures.canonical_name(name), variable.shape, dtype)


def _entries(variables: Sequence[Any]) -> list[str]:
    return [entry_of(variable) for variable in variables]


def begin(model: Any) -> None:
    """Compare the ranks' models before the first step of `fit`, even if they have compared them before.

    So ranks that differ get an error even if one of them has trained such a model already, and each knows the names of
    the other ranks' steps before it makes one. If a model is not built yet, the comparison waits for the first step.
    """
    optimizer = model.optimizer
    ranks = optimizer.distrun_settings.process_set
    attach(optimizer, _AGREED, None)
    if not all_built(model, optimizer.distrun_library, BEGINNING, ranks):
        return
    variables = local_variables(optimizer).others(model.trainable_variables)
    compare(_entries(variables), _WHAT, BEGINNING, process_set=ranks)
    how = _collective(optimizer, variables)
    is_eager = optimizer.distrun_library.BACKEND == "jax" and model.run_eagerly
    attach(optimizer, _STEP, f"eager.{how.name}" if is_eager else how.name)


def all_built(model: Any, library: Library, name: str, ranks: ProcessSet) -> bool:
    """Return whether the model has its variables on all ranks. `name` is the name of the operation that asks them."""
    return bool(collectives.allgather(np.array([library.is_built(model)]), name, ranks).all())


def _first_operation(gradients: Sequence[Any], collective: Call, backend: str) -> str | None:
    """Return the name of the first operation on the gradients."""
    if backend != "jax":
        return collective.name
    from distrun.graphs.jax.mechanism import is_traced

    return collective.name if is_traced(gradients) else f"eager.{collective.name}"


def name_of_step(optimizer: Any) -> str | None:
    """Return the name of the first operation of each of the optimizer's steps, or None if it is not known yet."""
    agreed = getattr(optimizer, _AGREED, None)
    return getattr(optimizer, _STEP) if agreed is not None and agreed[0] is world.engine() else None
