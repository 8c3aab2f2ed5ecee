"""The part of a state that is a model with its optimizer.

On JAX, steps are computed ahead, and `fit` keeps the values of variables outside of the model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from distrun.elastic.graphs import Ahead, HostArrays
from distrun.graphs.local_variables import without
from distrun.keras import gradients
from distrun.keras.gradients import Distributed, entry_of
from distrun.keras.library import Library, misses, state_of


class Training(HostArrays):
    """A model, with its optimizer if it has one."""

    def __init__(self, model: Any, optimizer: Any, library: Library) -> None:
        super().__init__()
        self._model = model
        self._optimizer = optimizer
        self._library = library
        self._updates = 0

    def variables(self) -> list[Any]:
        """Return the variables that are the same on all ranks."""
        if self._optimizer is None:
            return list(self._model.weights)
        everything = list(self._model.weights) + state_of(self._optimizer) + self._library.rates(self._optimizer)
        if not isinstance(self._optimizer, Distributed):
            return everything
        local = gradients.local_variables(self._optimizer).all()
        return without(everything, local + self._library.slots(self._optimizer, local)) if local else everything

    def mark(self) -> None:
        self._updates = self._count()

    def is_clean(self) -> bool:
        return self._count() == self._updates

    def drop_passes(self) -> None:
        """Drop gradients that were added up for an update that was not made."""
        if self._optimizer is not None:
            self._library.drop_passes(self._optimizer)

    def entries(self) -> list[str]:
        return [entry_of(variable) for variable in self.variables()]

    def values(self) -> list[Any]:
        return [self._library.array_of(variable) for variable in self.variables()]

    def assign(self, arrays: Sequence[Any]) -> None:
        self._library.assign(self.variables(), arrays)

    def _count(self) -> int:
        return 0 if self._optimizer is None else int(self._library.array_of(self._library.iterations(self._optimizer)))


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
