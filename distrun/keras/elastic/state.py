"""KerasState: the state of a model and its optimizer, with Keras 3 or Keras 2 and any backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distrun.elastic.graphs import Ahead, GraphState, HostArrays
from distrun.elastic.part import Part
from distrun.errors import UsageError
from distrun.graphs.local_variables import without
from distrun.keras import gradients
from distrun.keras.choice import CHOSEN, library_of
from distrun.keras.gradients import Distributed, entry_of
from distrun.keras.library import Library, state_of
from distrun.runtime.world import regroup


class KerasState(GraphState):
    """A state of a model with its optimizer, and of objects: `KerasState(model, batch=0, epoch=0)`.

    All ranks take the donor's weights and its optimizer's variables, which are made if they do not exist yet. Local
    variables and the states of random generators belong to each rank. A rank is in the middle of a step if the
    optimizer has made updates since the last step boundary.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Make a state.

        Args:
            model: a model of Keras 3 or Keras 2, built.
            optimizer: its optimizer. None: the one that it was compiled with.
            kwargs: objects, each of which becomes an attribute. Models among them are sent like `model`. `epoch` and
                `batch` always exist: the position of `fit`, counted from 0.

        Raises:
            UsageError: the model is not built, or there is no optimizer.
        """
        optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if optimizer is None:
            raise UsageError(
                "KerasState(model) finds no optimizer: compile the model before, or give KerasState(model, optimizer)"
            )
        super().__init__(**{"model": _part_of(model, optimizer), "epoch": 0, "batch": 0, "course": {}, **kwargs})
        self.model = model
        self.optimizer = optimizer
        if any(isinstance(part, Ahead) for part in self._parts.values()):
            from distrun.graphs.jax.lookahead import Lookahead

            self.lookahead = Lookahead()

    def recover(self, is_aborted: bool) -> None:
        """Go back to a state that training can continue from. Gradients that wait for more passes are dropped."""
        for part in self._parts.values():
            if isinstance(part, Training):
                part.drop_passes()
        super().recover(is_aborted)

    def part_of(self, name: str, value: Any) -> Part | None:
        """Return the part for a model, or None for an object to pickle."""
        if hasattr(value, "weights") and hasattr(value, "layers") and library_of(value) is not None:
            return _part_of(value, getattr(value, "optimizer", None))
        return super().part_of(name, value)


class TensorFlowKerasState(KerasState):
    """A `KerasState` by Horovod's other name: `TensorFlowKerasState(model, optimizer, step=0)`."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        """`backend` is accepted for Horovod's sake. For the rest see `KerasState`."""
        super().__init__(model, optimizer, **kwargs)


def _part_of(model: Any, optimizer: Any) -> Part:
    library = library_of(model) or CHOSEN
    if not model.weights:
        raise UsageError(
            f"the model {model.name!r} has no weights yet, so other ranks could not take them over: call "
            "model.build(input_shape), or the model on a batch of data, before the state is made"
        )
    if optimizer is not None:
        library.build(optimizer, model.trainable_variables)
    if library.BACKEND == "tensorflow" and optimizer is not None:
        from distrun.graphs.tensorflow.gradients import count_after_reductions

        count_after_reductions(library.iterations(optimizer))
    if library.BACKEND == "jax" and regroup.is_elastic():
        from distrun.keras.elastic.steps import TrainingOnJax

        return TrainingOnJax(model, optimizer, library)
    return Training(model, optimizer, library)


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
