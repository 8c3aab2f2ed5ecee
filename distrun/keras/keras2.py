"""Keras 2, today's package tf_keras, and everything that depends on its internals. Tested with tf_keras 2.21.

Its optimizers are of two kinds: `tf_keras.optimizers`, and `tf_keras.optimizers.legacy`, which were the only ones up to
Keras 2.10. This module relies on the following, and checks it when it is imported:

- All updates go through `apply_gradients`: in `fit`, in `minimize`, and in graphs of TensorFlow 1.
- Loss-scaling optimizers look at the gradients before they hand them on.
- A saved file takes the name of an optimizer from its class, its `_keras_api_names` or a registry of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from distrun.graphs.tensorflow.accumulation import Accumulation, when
from distrun.keras import gradients
from distrun.keras.gradients import Distributed
from distrun.keras.library import attach, misses, state_of, trainer_of

BACKEND: str = "tensorflow"
PACKAGE: Any = keras
OPTIMIZERS: tuple[type, ...] = (keras.optimizers.Optimizer, keras.optimizers.legacy.Optimizer)
PASSES = "_distrun_passes"
"""The attribute of an optimizer that holds its `Accumulation`, if it has one."""

try:
    from tf_keras.src.backend import track_variable
    from tf_keras.src.mixed_precision import loss_scale_optimizer
    from tf_keras.src.saving.object_registration import _GLOBAL_CUSTOM_NAMES
except ImportError as error:
    raise misses(keras, "registry of custom objects or variables") from error

for _owner, _name in ((OPTIMIZERS[0], "build"), (OPTIMIZERS[1], "_create_all_weights")):
    if not (hasattr(_owner, _name) and hasattr(_owner, "apply_gradients")):
        raise misses(keras, f"{_owner.__name__}.{_name}")
trainer_of(keras)

# The class that is mixed in -------------------------------------------------------------------------------------------


class DistributedKeras2(Distributed):
    """The class mixed into the classes of optimizers of both kinds."""

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **options: Any) -> Any:
        """Update the variables with the gradients of all ranks."""
        pairs = list(grads_and_vars)
        grads, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        plain: Any = super()

        def update(grads: Sequence[Any]) -> Any:
            return plain.apply_gradients(list(zip(grads, variables, strict=True)), *args, **options)

        def reduced(grads: list[Any]) -> list[Any]:
            return gradients.reduce(self, grads, variables)

        accumulation = vars(self).get(PASSES)
        if accumulation is None:
            return update(reduced(grads))
        build(self, variables)  # not within a branch
        is_due, grads = accumulation.add(grads, variables, reduced)
        done = when(is_due, lambda: update(grads), lambda: None)
        return self.iterations if done is None else done  # type: ignore[attr-defined]


def mixin_of(plain: type) -> type:
    return DistributedKeras2


# Optimizers -----------------------------------------------------------------------------------------------------------


def save_as(kind: type, plain: type) -> None:
    for name in ("_keras_api_names", "_keras_api_names_v1"):
        if name in vars(plain):
            setattr(kind, name, vars(plain)[name])
    if plain in _GLOBAL_CUSTOM_NAMES:
        _GLOBAL_CUSTOM_NAMES[kind] = _GLOBAL_CUSTOM_NAMES[plain]


def rename(optimizer: Any, name: str) -> None:
    optimizer = _core(optimizer)
    setattr(optimizer, "_name" if _is_legacy(optimizer) else "name", name)


def accumulate(optimizer: Any, passes: int, is_average: bool) -> float:
    if passes == 1:
        return 1.0
    # Keras initialises what it tracks, in graphs of TensorFlow 1.
    attach(optimizer, PASSES, Accumulation(passes, track_variable))
    return 1.0 / passes if is_average else 1.0


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    with tf.init_scope():
        if _is_legacy(optimizer):
            optimizer._create_all_weights(variables)
        else:
            optimizer.build(variables)


def slots(optimizer: Any, variables: Sequence[Any]) -> list[Any]:
    optimizer = _core(optimizer)
    if _is_legacy(optimizer):
        return [slot for variable in variables for slot in optimizer._slots.get(variable._unique_id, {}).values()]
    names = {variable._shared_name for variable in variables}  # slots are named after their variable: m/dense/kernel
    return [slot for slot in state_of(optimizer) if slot.name.partition(":")[0].partition("/")[2] in names]


def velocities(optimizer: Any) -> list[Any]:
    optimizer = _core(optimizer)
    if not any(
        isinstance(optimizer, kind)
        for package in (keras.optimizers, keras.optimizers.legacy)
        for kind in (package.SGD, package.RMSprop)
    ):
        return []
    if _is_legacy(optimizer):
        return [each["momentum"] for each in optimizer._slots.values() if "momentum" in each]
    return list(getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or [])


def iterations(optimizer: Any) -> Any:
    return _core(optimizer).iterations


def rates(optimizer: Any) -> list[Any]:
    optimizer = _core(optimizer)
    found = optimizer._hyper.values() if _is_legacy(optimizer) else [optimizer._learning_rate]
    return [each for each in found if hasattr(each, "assign")]


def drop_passes(optimizer: Any) -> None:
    accumulation = vars(optimizer).get(PASSES)
    if accumulation is not None:
        accumulation.drop()


def scaling_optimizers() -> list[Any]:
    return [loss_scale_optimizer.LossScaleOptimizer, loss_scale_optimizer.LossScaleOptimizerV3]


def _is_legacy(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.legacy.Optimizer)


def _core(optimizer: Any) -> Any:
    """Return the optimizer inside one that scales the loss, or the optimizer itself."""
    is_outer = any(isinstance(optimizer, kind) for kind in scaling_optimizers())
    return optimizer.inner_optimizer if is_outer else optimizer


# Values ---------------------------------------------------------------------------------------------------------------


def array_of(value: Any) -> Any:
    return np.asarray(keras.backend.get_value(value))


def assign(variables: Sequence[Any], arrays: Sequence[Any]) -> None:
    keras.backend.batch_set_value(list(zip(variables, arrays, strict=True)))


def scale(variables: Sequence[Any], factor: float) -> None:
    if tf.executing_eagerly():
        for variable in variables:
            variable.assign(variable * factor)
    else:
        assign(variables, [array_of(variable) * factor for variable in variables])


def load_model(filepath: Any, custom_objects: dict[str, Any], legacy_optimizers: bool) -> Any:
    if legacy_optimizers:
        legacy = {name: kind for name, kind in vars(keras.optimizers.legacy).items() if isinstance(kind, type)}
        custom_objects = legacy | {name.lower(): kind for name, kind in legacy.items()} | custom_objects
    return keras.models.load_model(filepath, custom_objects=custom_objects)


# Training -------------------------------------------------------------------------------------------------------------


def is_built(model: Any) -> bool:
    return len(state_of(model.optimizer)) > 1 or all(layer.built for layer in model._flatten_layers())


def finish(model: Any) -> None:
    """Nothing: steps are waited for as they come."""


def settle() -> None:
    """Nothing: steps are waited for as they come."""
