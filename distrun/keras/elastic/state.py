"""KerasState: the state of a model and its optimizer, with Keras 3 or Keras 2 and any backend."""

from __future__ import annotations

from typing import Any

from distrun.elastic.graphs import Ahead, GraphState
from distrun.elastic.part import Part
from distrun.errors import UsageError
from distrun.keras.choice import CHOSEN, library_of
from distrun.keras.elastic.training import Training, TrainingOnJax
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
        return TrainingOnJax(model, optimizer, library)
    return Training(model, optimizer, library)
