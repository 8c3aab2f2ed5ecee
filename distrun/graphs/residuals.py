"""The losses of gradients that graphs reduce: what compression takes from them, kept while ranks and plans change.

A face has a name for each list of gradients (`named`), and a loss belongs to a place in a list, whichever calls reduce
it. Where no call has it, when a generation or a world has ended or a checkpoint was restored, it waits here for the
first call that reduces this place.

In elastic jobs the losses of a step count only when the step is known to be made: at the next step boundary
(`settle`), or when the same gradients are reduced again. So a step that fails half-way changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod
from threading import Lock
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from distrun.graphs.low_rank import LowRankMatrices
from distrun.runtime.collectives.call import Call
from distrun.runtime.collectives.residuals import Residual, may_need_feedback, warn_of_dropped
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.request import Request, Shape
from distrun.runtime.operations.wire import ENCODED_DTYPES, WITH_FEEDBACK, is_small
from distrun.runtime.process_sets.process_set import global_process_set
from distrun.runtime.world import world

Flat = NDArray[Any]

Residuals = dict[str, dict[int, Residual]]
"""Losses by the name of the list and the place in it. Their arrays are never changed."""


def named(call: Call, entries: Sequence[str]) -> Call:
    """Return a call that reduces a list of gradients, described by `entries` as for `signature_id`, such that what they
    lose outlives the world; as it was where they lose nothing, or are those of some ranks only.

    Where they lose nothing, what a checkpoint has brought for them is dropped, with a warning: only calls that compress
    keep each gradient apart, and ranks that have come later, and have no losses, must make the same calls.
    """
    if call.process_set is not global_process_set:
        return call
    if not may_need_feedback(call.wire):
        _drop(entries)
        return call
    return call._replace(gradients=_name_of(tuple(entries)))


def _drop(entries: Sequence[str]) -> None:
    if not _waiting:
        return
    with _lock:
        places = _waiting.pop(_name_of(tuple(entries)), None)
    if places:
        warn_of_dropped("these gradients")


@lru_cache
def _name_of(entries: tuple[str, ...]) -> str:
    return hashlib.blake2b("\n".join(entries).encode(), digest_size=8).hexdigest()


def are_kept_of(call: Call) -> bool:
    """Return whether what a call loses is made up for."""
    return call.is_gradient and may_need_feedback(call.wire)


class CallResiduals:
    """The losses of the tensors of one call."""

    def __init__(
        self, call: Call, dtypes: Sequence[str], shapes: Sequence[Shape], matrices: LowRankMatrices | None
    ) -> None:
        """`matrices` are those of the tensors that are approximated."""
        self.gradients, self.first = call.gradients, call.first
        self._dtypes, self._shapes, self._matrices = dtypes, shapes, matrices
        self._feedbacks: dict[tuple[int, ...], Feedback] = {}  # by the places of what is one operation
        self._loaded: dict[int, NDArray[np.float32]] = {}  # what was lost elsewhere
        self._given: list[int] = []  # of these, what was added to the gradients that have been reduced
        self._is_new = False
        if self.gradients:
            with _lock:
                _calls.add(self)
            self.load(_taken(self.gradients, self.wanted()))

    def wanted(self) -> dict[int, Shape]:
        """Return the shapes of the tensors that may lose something, by their places in the list."""
        return {
            self.first + place: shape
            for place, (dtype, shape) in enumerate(zip(self._dtypes, self._shapes, strict=True))
            if dtype in ENCODED_DTYPES
        }

    # Reducing ---------------------------------------------------------------------------------------------------------

    def begin(self, inputs: Sequence[Flat]) -> Sequence[Flat]:
        """Return what to reduce in place of `inputs`, which are left as they are: what others have lost comes along."""
        self.settle()
        self._given = list(self._loaded)
        if not self._given:
            return inputs
        given = list(inputs)
        for place, lost in self._loaded.items():
            given[place] = (inputs[place] + lost.reshape(-1)).astype(inputs[place].dtype, copy=False)
        return given

    def feedback(self, request: Request, places: Sequence[int]) -> Feedback | None:
        """Return where an operation on the tensors at these places keeps what it loses; None if that is nothing."""
        if world.engine().backend.quantisation_of(request) != WITH_FEEDBACK:
            return None
        return self._feedbacks.setdefault(tuple(places), Feedback())

    def end(self) -> None:
        """The call has succeeded."""
        self._is_new = True
        if not world.is_elastic():
            self.settle()

    def settle(self) -> None:
        """The results of the last call, if it has succeeded, are used."""
        if self._is_new:
            self._is_new = False
            for each in self._all():
                each.keep()
            for place in self._given:
                del self._loaded[place]
            self._given = []

    def discard(self) -> None:
        """The results of the last call are of no use."""
        self._is_new, self._given = False, []
        for each in self._all():
            each.discard()

    def _all(self) -> list[Feedback | LowRankMatrices]:
        return [*self._feedbacks.values(), *([] if self._matrices is None else [self._matrices])]

    # What was lost ----------------------------------------------------------------------------------------------------

    def residuals(self) -> dict[int, Residual]:
        """Return what is to be made up for, by place in the list."""
        found = {} if self._matrices is None else self._matrices.residuals()
        for places, feedback in self._feedbacks.items():
            sizes = [prod(self._shapes[place]) for place in places]
            owed = feedback.owed(sum(sizes))
            if owed is None:
                continue
            for place, part in zip(places, np.split(owed, np.cumsum(sizes)[:-1]), strict=True):
                if not is_small(self._shapes[place]):
                    found[place] = Residual(part.reshape(self._shapes[place]))
        for place, lost in self._loaded.items():
            found[place] = _sum(found.get(place, Residual()), Residual(lost))
        return {self.first + place: residual for place, residual in found.items()}

    def load(self, residuals: Mapping[int, Residual]) -> None:
        """Make up for these, by place in the list, and for nothing else."""
        self.discard()
        self._feedbacks = {}
        mine = {place - self.first: residual for place, residual in residuals.items()}
        approximated: Sequence[int] = ()
        if self._matrices is not None:
            self._matrices.load_residuals(mine)
            approximated = self._matrices.places
        self._loaded = {
            place: residual.lost
            for place, residual in mine.items()
            if place not in approximated and residual.lost is not None
        }


def _sum(one: Residual, other: Residual) -> Residual:
    if one.lost is None or other.lost is None:
        lost = other.lost if one.lost is None else one.lost
    else:
        lost = one.lost + other.lost
    return Residual(lost, other.q if one.q is None else one.q)


# All of this process --------------------------------------------------------------------------------------------------

_lock = Lock()  # programs run on threads of their frameworks
_calls: WeakSet[CallResiduals] = WeakSet()
_waiting: Residuals = {}  # for calls to come
_finishing: list[Callable[[], None]] = []


def before_reading(finish: Callable[[], None]) -> None:
    """Have a function called before losses are read for a checkpoint: it waits for steps that are computed ahead."""
    _finishing.append(finish)


def finish() -> None:
    """Wait for steps that are computed ahead, which count from now on."""
    for each in _finishing:
        each()
    settle()


def are_kept() -> bool:
    """Return whether gradients of this process lose something that is made up for."""
    return bool(_calls or _waiting)


def settle() -> None:
    """All steps so far have been made."""
    for each in _known():
        each.settle()


def discard() -> None:
    """The results of all calls since the last step boundary are of no use."""
    for each in _known():
        each.discard()


def residuals() -> Residuals:
    """Return what this rank has to make up for."""
    found = {name: dict(places) for name, places in _waiting.items()}
    for each in _known():
        places = found.setdefault(each.gradients, {})
        for place, residual in each.residuals().items():
            places[place] = _sum(places.get(place, Residual()), residual)
    return {name: places for name, places in found.items() if places}


def load(given: Residuals) -> None:
    """Make up for these, and for nothing else."""
    with _lock:
        _waiting.clear()
        _waiting.update({name: dict(places) for name, places in given.items()})
    for each in _known():
        each.load(_taken(each.gradients, each.wanted()))


def _known() -> list[CallResiduals]:
    with _lock:
        return list(_calls)


def _taken(gradients: str, wanted: Mapping[int, Shape]) -> dict[int, Residual]:
    """Return what waits for gradients of these shapes, by place, and waits no longer."""
    with _lock:
        places = _waiting.get(gradients, {})
        fitting = [
            place
            for place, residual in places.items()
            if place in wanted and (residual.lost is None or residual.lost.shape == tuple(wanted[place]))
        ]
        taken = {place: places.pop(place) for place in fitting}
        if not places:
            _waiting.pop(gradients, None)
        return taken


def _leave() -> None:
    """The next world has other plans."""
    discard()
    found = residuals()
    with _lock:
        _calls.clear()
        _waiting.clear()
        _waiting.update(found)


world.on_leaving(_leave)
