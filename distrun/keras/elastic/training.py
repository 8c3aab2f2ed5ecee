"""The part of a state that is a model with its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distrun.elastic.graphs import HostArrays
from distrun.graphs.local_variables import without
from distrun.keras import gradients
from distrun.keras.gradients import Distributed, entry_of
from distrun.keras.library import Library, state_of


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
