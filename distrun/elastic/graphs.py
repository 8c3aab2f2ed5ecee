"""The common part of the states for TensorFlow, Keras and JAX: foreign errors, and tensors by way of host memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from distrun.elastic.donor import NEW
from distrun.elastic.objects import ObjectState
from distrun.elastic.part import Part
from distrun.errors import UsageError
from distrun.graphs import residuals as residuals
from distrun.runtime.world import regroup, world

_ABORT = re.compile(r"\b(JobAborted|Bootstrap)Error: (?P<sentence>[^\n]*)")


class Lookahead(Protocol):
    """The last step boundaries of a training, for frameworks that compute ahead: see `distrun.graphs.jax.lookahead`."""

    def add(self, arrays: Any, note: Any, /) -> None:
        """Add a boundary; raises if a step before has failed."""
        ...

    def wait(self) -> None:
        """Wait for the last boundary; raises as `add` does."""
        ...

    def newest(self) -> tuple[Any, Any] | None:
        """Return the last boundary that is computed, with its note."""
        ...

    def clear(self) -> None:
        """Keep none."""
        ...


class Ahead(Protocol):
    """A part whose arrays never change, and may still be computed at a step boundary."""

    def arrays(self) -> Any:
        """Return all of them."""
        ...

    def go_back(self, arrays: Any, /) -> None:
        """Have these arrays again."""
        ...


class GraphState(ObjectState):
    """The base of the states for frameworks that run graphs.

    Where the framework computes ahead, a class that extends this sets `lookahead`: then a rank goes back to the last
    boundary that is computed, in whichever step the error comes to light.

    What compression has taken from the gradients, and is to be made up for, is each rank's own: a rank keeps it when
    others come or go, goes back to what it was at the last commit with the rest, and takes nobody else's. What a rank
    that is gone owed is gone with it, and a newcomer owes nothing.
    """

    _residuals: residuals.Residuals | None = None  # as of the last `save`

    lookahead: Lookahead | None = None
    ahead: Sequence[str] = ()
    """The names of the parts that are `Ahead`."""

    def mark(self) -> None:
        """Note a step boundary."""
        super().mark()
        self._look()
        is_kept = residuals.are_kept()
        if self.lookahead is not None and (is_kept or regroup.planned() is not None):
            self.lookahead.wait()  # the others need all of our steps; and nobody knows what is lost before it is
        if is_kept:
            residuals.settle()

    def save(self) -> None:
        """Keep a copy of every part, and what compression has taken from this rank's gradients."""
        super().save()
        self._residuals = residuals.residuals()

    def restore(self) -> None:
        """Go back to the copy that `commit` has kept or, in Horovod's mode, `sync`."""
        super().restore()
        residuals.load(self._residuals or {})

    def recover(self, is_aborted: bool) -> None:
        """Go back to the last boundary that is computed, or to the last commit if that has to be."""
        if self.lookahead is not None and self._boundaries > NEW:
            found = self.lookahead.newest()
            if found is None:
                self._is_torn = True
            else:
                self._go_back(*found)
        super().recover(is_aborted)

    def sync(self) -> None:
        """Give all ranks the state of the one that was elected."""
        is_new = self._boundaries == NEW
        super().sync()
        if is_new and self._boundaries > 0:
            residuals.load({})  # such as those of a checkpoint, which the others have made up for
            self._residuals = None
        if self.lookahead is not None:
            self.lookahead.clear()
            self._look()

    def _look(self) -> None:
        if self.lookahead is not None:
            arrays = {name: self._parts[name].arrays() for name in self.ahead}  # type: ignore[attr-defined]
            others = {name: part.describe() for name, part in self._parts.items() if name not in self.ahead}
            self.lookahead.add(arrays, (self._boundaries, others))

    def _go_back(self, arrays: dict[str, Any], note: tuple[int, dict[str, Any]]) -> None:
        self._boundaries, others = note
        for name, value in arrays.items():
            self._parts[name].go_back(value)  # type: ignore[attr-defined]
        for name, description in others.items():
            self._parts[name].adopt(description)
            self._parts[name].complete()
        if self._boundaries == self._committed:  # steps may have been made since, without a boundary
            residuals.load(self._residuals or {})

    def is_abort(self, error: Exception) -> bool:
        """Return whether an exception of the training function says that a rank is lost; see `State.is_abort`.

        In a graph the framework raises in our place, with our error's name and text in its own text.
        """
        if super().is_abort(error):
            return True
        return self._sentence(error) is not None

    def reason_of(self, error: Exception) -> str:
        """Return our own words, of those that the framework has put around them."""
        return self._sentence(error) or str(error)

    @staticmethod
    def _sentence(error: Exception) -> str | None:
        origins = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
        is_of_framework = bool(origins & {"tensorflow", "jax", "jaxlib"}) or type(error) in (ValueError, RuntimeError)
        found = _ABORT.search(str(error)) if is_of_framework else None
        return None if found is None else found["sentence"]


class HostArrays(Part):
    """A part whose tensors are read and written as numpy arrays. A class that extends it says which, and how."""

    def __init__(self) -> None:
        self._saved: list[Any] = []
        self._is_taking = False
        self._arriving: list[Any] | None = None

    def entries(self) -> list[str]:
        """Return a text for each tensor: its name, shape and dtype, alike on all ranks."""
        raise NotImplementedError

    def values(self) -> list[Any]:
        """Return the tensors as numpy arrays, which may be their own memory."""
        raise NotImplementedError

    def assign(self, arrays: Sequence[Any]) -> None:
        """Overwrite the tensors."""
        raise NotImplementedError

    def save(self) -> None:
        self._saved = [np.array(value) for value in self.values()]

    def restore(self) -> None:
        self._arriving, self._is_taking = None, False
        self.assign(self._saved)

    def describe(self) -> Any:
        return self.entries()

    def adopt(self, description: Any) -> None:
        own = self.entries()
        for place, (here, there) in enumerate(zip_longest(own, description, fillvalue="nothing")):
            if here != there:
                raise UsageError(
                    f"this rank, {world.rank()}, cannot take the state of another: in place {place} it has {here}, and "
                    f"the other {there}; build the same on every rank, before elastic.run"
                )
        self._is_taking = True

    def tensors(self) -> Sequence[Any]:
        if not self._is_taking:
            return [np.require(value, requirements="C") for value in self.values()]
        self._arriving = [np.require(value, requirements=("C", "W")) for value in self.values()]
        return self._arriving

    def complete(self) -> None:
        if self._arriving is not None:
            self.assign(self._arriving)
        self._arriving, self._is_taking = None, False
