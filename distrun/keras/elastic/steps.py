"""Keras on JAX, where steps are computed ahead, and `fit` keeps the values of variables outside of the model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from distrun.elastic.graphs import Ahead
from distrun.keras.elastic.training import Training
from distrun.keras.library import Library, misses, state_of


class TrainingOnJax(Training, Ahead):
    """A model with its optimizer, on JAX, in an elastic job. Its steps do not donate the arrays that they take."""

    def __init__(self, model: Any, optimizer: Any, library: Library) -> None:
        super().__init__(model, optimizer, library)
        _keep_inputs(library.PACKAGE)
        model.train_function = model.test_function = None  # functions that were made before would donate them

    def mark(self) -> None:
        """Do nothing: the state keeps `arrays` at each boundary."""

    def is_clean(self) -> bool:
        return True  # it has gone back to a boundary

    def arrays(self) -> list[Any]:
        """Return the values of all variables. In `fit`, these are the values after the last step."""
        model = self._model
        if getattr(model, "_jax_state_synced", True):
            return [variable.value for variable in self._all()]
        state = model._jax_state
        kinds = ("trainable_variables", "non_trainable_variables", "optimizer_variables")
        return [value for kind in kinds for value in state[kind]]

    def go_back(self, arrays: list[Any]) -> None:
        """Assign these values to the variables."""
        model = self._model
        for variable, value in zip(self._all(), arrays, strict=True):
            variable.assign(value)
        model._jax_state, model._jax_state_synced = None, True
        for metric in model.metrics:  # their values are lost
            metric.reset_state()

    def values(self) -> list[Any]:
        self._reattach()
        return super().values()

    def assign(self, arrays: Sequence[Any]) -> None:
        self._reattach()
        super().assign(arrays)

    def _reattach(self) -> None:
        """In `fit`, move the values back into the model's variables."""
        if not getattr(self._model, "_jax_state_synced", True):
            self._model.jax_state_sync()

    def _all(self) -> list[Any]:
        model = self._model
        optimizer = [] if self._optimizer is None else state_of(self._optimizer)
        return [*model.trainable_variables, *model.non_trainable_variables, *optimizer]


def _keep_inputs(keras: Any) -> None:
    """Compile steps of `fit` and `evaluate` without donation, so that a step that fails leaves the weights intact."""
    try:
        from keras.src.backend.jax import trainer
    except ImportError as error:
        raise misses(keras, "backend.jax.trainer") from error
    if not hasattr(trainer, "jit"):
        raise misses(keras, "backend.jax.trainer.jit")
    if not hasattr(trainer.jit, "distrun_plain"):
        trainer.jit = _without_donation(trainer.jit)


def _without_donation(plain: Any) -> Any:
    @functools.wraps(plain)
    def jit(function: Any, **options: Any) -> Any:
        options.pop("donate_argnums", None)
        return plain(function, **options)

    jit.distrun_plain = plain  # type: ignore[attr-defined]
    return jit
