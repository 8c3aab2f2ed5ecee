"""TensorFlowKerasState: Horovod's other name for a KerasState, with an argument more."""

from __future__ import annotations

from typing import Any

from distrun.keras.elastic.state import KerasState


class TensorFlowKerasState(KerasState):
    """A `KerasState`, for loops of one's own: `TensorFlowKerasState(model, optimizer, step=0)`."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        """`backend` is accepted for Horovod's sake; for the rest see `KerasState`."""
        super().__init__(model, optimizer, **kwargs)
