"""The base of the states for TensorFlow, Keras and JAX: errors of the framework, and tensors in host memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from distrun.elastic.donor import NEW
from distrun.elastic.objects import ObjectState
from distrun.elastic.part import Part
from distrun.errors import UsageError
from distrun.graphs import residuals as residuals
from distrun.runtime.world import regroup, world

if TYPE_CHECKING:  # it loads JAX
    from distrun.graphs.jax.lookahead import Lookahead

_ABORT = re.compile(r"\b(JobAborted|Bootstrap)Error: (?P<sentence>[^\n]*)")


class Ahead(Part):
    """A part whose arrays never change, and may still be computed at a step boundary."""

    def arrays(self) -> Any:
        """Return all of them."""
        raise NotImplementedError(f"{type(self).__name__} has no arrays: let it return all of them")

    def go_back(self, arrays: Any) -> None:
        """Take these arrays, which `arrays` has returned before, in place of the present ones."""
        raise NotImplementedError(f"{type(self).__name__} has no go_back: let it take these arrays")


class GraphState(ObjectState):
    """The base of the states for frameworks that run graphs.

    Where the framework computes ahead, a class that extends this one sets `lookahead`. Then a rank goes back to the
    last boundary that is computed, whichever step raises the error.

    The residuals of compressed gradients belong to each rank. A rank keeps its own when others come or go, restores
    them with the rest of its last commit, and takes none of other ranks. Those of a rank that is gone are lost, and a
    newcomer has none.
    """

    lookahead: Lookahead | None = None
    """The last step boundaries of the training, where its parts are `Ahead`."""
    _residuals: residuals.Residuals | None = None
    """As of the last `save`."""

    def mark(self) -> None:
        """Note a step boundary."""
        super().mark()
        self._look()
        is_kept = residuals.are_kept()
        if self.lookahead is not None and (is_kept or regroup.planned() is not None):
            # Other ranks need all steps of this one, and residuals are known only when the steps are computed.
            self.lookahead.wait()
        if is_kept:
            residuals.settle()

    def save(self) -> None:
        """Keep a copy of every part, and of the residuals of this rank's gradients."""
        super().save()
        self._residuals = residuals.residuals()

    def restore(self) -> None:
        """Go back to the copy that `commit` has kept or, in Horovod's mode, `sync`."""
        super().restore()
        residuals.load(self._residuals or {})

    def recover(self, is_aborted: bool) -> None:
        """Go back to the last boundary that is computed or, where there is none, to the last commit."""
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
            residuals.load({})  # a checkpoint's, say, which the other ranks have added to their gradients already
            self._residuals = None
        if self.lookahead is not None:
            self.lookahead.clear()
            self._look()

    def _look(self) -> None:
        if self.lookahead is not None:
            arrays = [part.arrays() for part in self._parts.values() if isinstance(part, Ahead)]
            others = [part.describe() for part in self._parts.values() if not isinstance(part, Ahead)]
            self.lookahead.add(arrays, (self._boundaries, others))

    def _go_back(self, arrays: list[Any], note: tuple[int, list[Any]]) -> None:
        self._boundaries, others = note
        left, described = iter(arrays), iter(others)
        for part in self._parts.values():
            if isinstance(part, Ahead):
                part.go_back(next(left))
            else:
                part.adopt(next(described))
                part.complete()
        if self._boundaries == self._committed:  # steps may have been made since, without a boundary
            residuals.load(self._residuals or {})

    def is_abort(self, error: Exception) -> bool:
        """Return whether an exception of the training function says that a rank is lost. See `State.is_abort`.

        In a graph the framework raises an error of its own, whose text contains the name and the text of distrun's.
        """
        return super().is_abort(error) or self._sentence(error) is not None

    def reason_of(self, error: Exception) -> str:
        """Return the sentence of distrun's error in the text of the framework's."""
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
        self._received: list[Any] | None = None
        """The arrays that the donor's overwrite, from `adopt` until `complete`. None at other times."""

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
        self.assign(self._saved)

    def describe(self) -> Any:
        self._received = None
        return self.entries()

    def adopt(self, description: Any) -> None:
        own = self.entries()
        for place, (here, there) in enumerate(zip_longest(own, description, fillvalue="nothing")):
            if here != there:
                raise UsageError(
                    f"this rank, {world.rank()}, cannot take the state of another: in place {place} it has {here}, and "
                    f"the other {there}; build the same on every rank, before elastic.run"
                )
        self._received = []

    def tensors(self) -> Sequence[Any]:
        if self._received is None:
            return [np.require(value, requirements="C") for value in self.values()]
        self._received = [np.require(value, requirements=("C", "W")) for value in self.values()]
        return self._received

    def complete(self) -> None:
        if self._received:  # else nothing was sent: all ranks have the same
            self.assign(self._received)
        self._received = None
