"""Models, optimizers and variables of Keras 3 and Keras 2, and variables of TensorFlow, by their public interface.

Keras itself is not imported: a checkpoint is saved by programs of all frameworks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distrun.errors import UsageError


def is_variable(value: Any) -> bool:
    """Whether a value is a variable of Keras or of TensorFlow."""
    return callable(getattr(value, "assign", None)) and callable(getattr(value, "numpy", None))


def is_model(value: Any) -> bool:
    """Whether a value is a model or a layer of either Keras."""
    return _is_of_keras(value) and hasattr(value, "trainable_variables") and hasattr(value, "weights")


def is_optimizer(value: Any) -> bool:
    """Whether a value is an optimizer of either Keras."""
    return _is_of_keras(value) and hasattr(value, "apply_gradients") and hasattr(value, "variables")


def _is_of_keras(value: Any) -> bool:
    return any(kind.__module__.partition(".")[0] in ("keras", "tf_keras") for kind in type(value).__mro__)


def array_of(variable: Any) -> Any:
    """Return the value of a variable as a numpy array."""
    return np.asarray(variable.numpy())


def model_variables(model: Any) -> dict[str, list[Any]]:
    """Return all variables of a model: its weights and seeds, and the variables of the optimizer it was compiled with.

    Raises:
        UsageError: the model has no variables yet.
    """
    if hasattr(model, "jax_state_sync"):  # on JAX, `fit` keeps the values elsewhere within an epoch
        model.jax_state_sync()
    if not model.built:
        raise UsageError(f"the model {model.name!r} has no variables yet: call it, or `build`, before")
    optimizer = getattr(model, "optimizer", None)
    return {
        "weights": list(model.variables),
        "optimizer": [] if optimizer is None else optimizer_variables(optimizer, model.trainable_variables),
    }


def optimizer_variables(optimizer: Any, trained: Sequence[Any] = ()) -> list[Any]:
    """Return the variables of an optimizer, after it has made them for `trained`, the variables that it trains."""
    if trained and not getattr(optimizer, "built", False) and hasattr(optimizer, "build"):  # Keras 2 has no `built`
        optimizer.build(trained)
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def feedback_of(value: Any) -> Any:
    """Return the `ErrorFeedback` of an optimizer, or of the one that a model was compiled with. None: it has none."""
    return getattr(_optimizer_of(value), "distrun_feedback", None)


def is_distributed(value: Any) -> bool:
    """Return whether an optimizer, or the one that a model was compiled with, is a `DistributedOptimizer`."""
    return hasattr(_optimizer_of(value), "distrun_feedback")


def _optimizer_of(value: Any) -> Any:
    return value if is_optimizer(value) else getattr(value, "optimizer", None)


def assign(variables: Sequence[Any], arrays: Sequence[Any], path: str) -> None:
    """Overwrite variables with arrays. `path` is their place, for messages.

    Raises:
        UsageError: other variables were saved, by number or shapes.
    """
    shapes, saved = [list(map(int, each.shape)) for each in variables], [list(np.shape(array)) for array in arrays]
    if shapes != saved:
        place = next((i for i, (one, other) in enumerate(zip(shapes, saved, strict=False)) if one != other), None)
        told = f"{len(saved)} variables, and this has {len(shapes)}"
        if place is not None:
            told = f"a variable of shape {saved[place]} in place {place}, where this has {shapes[place]}"
        raise UsageError(f"the checkpoint has of {path} {told}: build the same, an optimizer before it is restored")
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
