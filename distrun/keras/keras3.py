"""Keras 3, and everything that depends on its internals, which may change with a release. Tested with 3.5 to 3.15.

This module relies on the following, and checks it when it is imported:

- All updates go through `Optimizer.apply`. With gradient accumulation `_clip_gradients` sees the accumulated gradients,
  and is called once per update (on JAX in every step, since there are no branches).
- `LossScaleOptimizer` looks at the gradients before it hands them on, and its `stateless_apply` does not call its
  `apply`.
- A trainer's `fit` calls `make_train_function`, which traces `optimizer.apply` into what it caches as `train_function`.
- A saved file takes the name of an optimizer from two registries of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from distrun.errors import UsageError
from distrun.keras import gradients
from distrun.keras.gradients import Distributed
from distrun.keras.library import misses, trainer_of

BACKEND: str = keras.backend.backend()
PACKAGE: Any = keras
OPTIMIZERS: tuple[type, ...] = (keras.optimizers.Optimizer,)

try:
    from keras.src.api_export import REGISTERED_OBJS_TO_NAMES
    from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES
except ImportError as error:
    raise misses(keras, "registry of public names") from error

LossScaleOptimizer: Any = keras.optimizers.LossScaleOptimizer
_EXPECTED = {
    keras.optimizers.Optimizer: ("apply", "_clip_gradients", "stateless_apply", "build"),
    LossScaleOptimizer: ("apply", "stateless_apply"),
}
for _owner, _names in _EXPECTED.items():
    for _name in _names:
        if not hasattr(_owner, _name):
            raise misses(keras, f"{_owner.__name__}.{_name}")
trainer_of(keras)

_reduce: Callable[..., Any] = gradients.reduce
if BACKEND == "torch":
    import torch

    _reduce = torch._dynamo.disable(_reduce)  # type: ignore[no-untyped-call]  # torch.compile is not to trace it

# The classes that are mixed in ----------------------------------------------------------------------------------------


class DistributedKeras3(Distributed, keras.optimizers.Optimizer):
    """The class mixed into an optimizer's class."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Update the variables with the gradients of all ranks."""
        if not self.gradient_accumulation_steps:
            grads = _reduce(self, list(grads), _variables_of(self, trainable_variables))
        return super().apply(grads, trainable_variables)

    def __reduce__(self) -> Any:
        """Pickle as the plain optimizer, as a saved file has it."""
        _, arguments = super().__reduce__()
        return self.distrun_plain._unpickle_model, arguments  # type: ignore[attr-defined]

    def _clip_gradients(self, grads: Any) -> Any:
        if self.gradient_accumulation_steps:
            grads = _at_update(self, self._distrun_reduce_accumulated, list(grads))
        return super()._clip_gradients(grads)

    def _distrun_reduce_accumulated(self, grads: list[Any]) -> list[Any]:
        return _reduce(self, grads, _variables_of(self, None))


class DistributedLossScaling(DistributedKeras3):
    """The class mixed into `LossScaleOptimizer`, whose two ways of applying gradients are independent of each other."""

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Update the variables, given by value, with the gradients of all ranks."""
        grads = _reduce(self, list(grads), _variables_of(self, None))
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)


def _variables_of(optimizer: Any, given: Sequence[Any] | None) -> list[Any]:
    """Return the variables that the gradients given to `apply` belong to."""
    return list(optimizer._trainable_variables if given is None else given)


def _at_update(optimizer: Any, function: Callable[[list[Any]], list[Any]], grads: list[Any]) -> list[Any]:
    """Return `function(grads)` in steps that update the variables, otherwise `grads`: for `_clip_gradients` of an
    optimizer that accumulates gradients."""
    if BACKEND != "jax":  # on the others Keras calls `_clip_gradients` in such steps only
        return function(grads)
    import jax

    is_update = (optimizer._iterations.value + 1) % optimizer.gradient_accumulation_steps == 0
    return list(jax.lax.cond(is_update, function, lambda grads: grads, grads))


def mixin_of(plain: type) -> type:
    return DistributedLossScaling if issubclass(plain, LossScaleOptimizer) else DistributedKeras3


# Optimizers -----------------------------------------------------------------------------------------------------------


def save_as(kind: type, plain: type) -> None:
    for ancestor in plain.__mro__:  # on torch, keras.optimizers.SGD() is an instance of another, internal SGD
        name = REGISTERED_OBJS_TO_NAMES.get(ancestor)
        if name is not None and ancestor.__name__ == plain.__name__:
            REGISTERED_OBJS_TO_NAMES[kind] = name
            return
    if plain in GLOBAL_CUSTOM_NAMES:
        GLOBAL_CUSTOM_NAMES[kind] = GLOBAL_CUSTOM_NAMES[plain]


def rename(optimizer: Any, name: str) -> None:
    optimizer.name = name


def accumulate(optimizer: Any, passes: int, is_average: bool) -> float:
    if passes == 1:
        return 1.0
    inner = _core(optimizer)
    obstacles = {
        "optimizers of its own": hasattr(inner, "optimizers"),
        "been built already": inner.built,
        f"gradient_accumulation_steps={inner.gradient_accumulation_steps}": inner.gradient_accumulation_steps,
    }
    for obstacle, is_there in obstacles.items():
        if is_there:
            raise UsageError(
                f"backward_passes_per_step={passes} cannot be given to this {type(inner).__name__}, which has "
                f"{obstacle}: set gradient_accumulation_steps when you make the optimizer, and leave "
                "backward_passes_per_step out"
            )
    inner.gradient_accumulation_steps = passes
    return 1.0 if is_average else float(passes)  # Keras averages by itself


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    if not optimizer.built:
        optimizer.build(variables)


def slots(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    # Slots are named after their variable: dense_kernel_momentum. The longest match counts, for there may be a variable
    # dense as well.
    inner = _core(optimizer)
    owners = {variable.path.replace("/", "_"): variable for variable in inner._trainable_variables}
    wanted = {id(variable) for variable in variables}
    found = []
    for slot in optimizer.variables:
        name = slot.path.rpartition("/")[2]
        owner = max((each for each in owners if name.startswith(f"{each}_")), key=len, default=None)
        if owner is not None and id(owners[owner]) in wanted:
            found.append(slot)
    return found


def velocities(optimizer: Any) -> list[Any]:
    optimizer = _core(optimizer)
    if not (isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop)) and optimizer.built):
        return []
    found = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or []
    return [variable for variable in found if variable is not None] if optimizer.momentum else []


def iterations(optimizer: Any) -> Any:
    return _core(optimizer)._iterations


def rates(optimizer: Any) -> list[Any]:
    return []


def drop_passes(optimizer: Any) -> None:
    """Do nothing: Keras 3 accumulates gradients in variables of the optimizer."""


def scaling_optimizers() -> list[Any]:
    return [LossScaleOptimizer]


def _core(optimizer: Any) -> Any:
    """Return the optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    return optimizer.inner_optimizer if isinstance(optimizer, LossScaleOptimizer) else optimizer


# Values ---------------------------------------------------------------------------------------------------------------


def array_of(value: Any) -> Any:
    if isinstance(value, keras.Variable):
        value = value.value
    if not keras.ops.is_tensor(value):
        return np.asarray(value)
    # Keras cannot convert a bfloat16 scalar of TensorFlow.
    return np.asarray(
        value.numpy() if BACKEND == "tensorflow" and hasattr(value, "numpy") else keras.ops.convert_to_numpy(value)
    )


def assign(variables: Sequence[Any], arrays: Sequence[Any]) -> None:
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def scale(variables: Sequence[Any], factor: float) -> None:
    for variable in variables:
        variable.assign(variable * factor)


def load_model(filepath: Any, custom_objects: dict[str, Any], legacy_optimizers: bool) -> Any:
    return keras.models.load_model(filepath, custom_objects=custom_objects)


# Training -------------------------------------------------------------------------------------------------------------


def is_built(model: Any) -> bool:
    if BACKEND != "tensorflow" or model.optimizer.built:  # the other backends have built the model by then
        return True
    return all(layer.built for layer in model._flatten_layers())


def finish(model: Any) -> None:
    if BACKEND == "jax":
        import jax

        jax.block_until_ready([variable.value for variable in model.optimizer.variables])


def settle() -> None:
    if BACKEND == "jax":
        from distrun.graphs.jax.mechanism import finish

        finish()
