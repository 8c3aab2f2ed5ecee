"""The residuals of gradients that graphs reduce, kept while ranks and plans change.

Each list of gradients has a name (`named`). A residual belongs to a place in a list, whichever call reduces it. If no
call holds it, because a generation or a world has ended or a checkpoint was restored, it waits in this module for the
first call that reduces this place.

In elastic jobs, the residuals of a step count only when the step is known to be complete: at the next step boundary
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
"""Residuals by the name of the list and the place in it. Their arrays are never changed."""


def named(call: Call, entries: Sequence[str]) -> Call:
    """Return `call`, which reduces a list of gradients, marked so that their residuals outlive the world.

    `entries` describe the gradients as for `signature_id`. The call is returned unchanged if it needs no error
    feedback, or is within a process set. If it needs none, residuals that a checkpoint has for these gradients are
    dropped, with a warning: only calls that compress keep each gradient separate, and new ranks, which have no
    residuals, must make the same calls.
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
    """Return whether `call` uses error feedback."""
    return call.is_gradient and may_need_feedback(call.wire)


class CallResiduals:
    """The residuals of the tensors of one call."""

    def __init__(
        self, call: Call, dtypes: Sequence[str], shapes: Sequence[Shape], matrices: LowRankMatrices | None
    ) -> None:
        """`matrices` has the approximated tensors, if any."""
        self.gradients, self.first = call.gradients, call.first
        self._dtypes, self._shapes, self._matrices = dtypes, shapes, matrices
        self._feedbacks: dict[tuple[int, ...], Feedback] = {}  # by the places of the tensors of one operation
        self._loaded: dict[int, NDArray[np.float32]] = {}  # residuals of other calls or worlds
        self._given: list[int] = []  # the places of those that were added to the gradients of the last call
        self._is_new = False
        if self.gradients:
            with _lock:
                _calls.add(self)
            self.load(_taken(self.gradients, self.wanted()))

    def wanted(self) -> dict[int, Shape]:
        """Return the shapes of the tensors that may have residuals, by their places in the list."""
        return {
            self.first + place: shape
            for place, (dtype, shape) in enumerate(zip(self._dtypes, self._shapes, strict=True))
            if dtype in ENCODED_DTYPES
        }

    # Reducing ---------------------------------------------------------------------------------------------------------

    def begin(self, inputs: Sequence[Flat]) -> Sequence[Flat]:
        """Return the arrays to reduce instead of `inputs`: with loaded residuals added. `inputs` are not changed."""
        self.settle()
        self._given = list(self._loaded)
        if not self._given:
            return inputs
        given = list(inputs)
        for place, lost in self._loaded.items():
            given[place] = (inputs[place] + lost.reshape(-1)).astype(inputs[place].dtype, copy=False)
        return given

    def feedback(self, request: Request, places: Sequence[int]) -> Feedback | None:
        """Return the feedback for an operation on the tensors at these places, or None if it needs none."""
        if world.engine().backend.quantisation_of(request) != WITH_FEEDBACK:
            return None
        return self._feedbacks.setdefault(tuple(places), Feedback())

    def end(self) -> None:
        """Record that the call has succeeded."""
        self._is_new = True
        if not world.is_elastic():
            self.settle()

    def settle(self) -> None:
        """Keep the residuals of the last call, if it has succeeded, because its results are used."""
        if self._is_new:
            self._is_new = False
            for each in self._all():
                each.keep()
            for place in self._given:
                del self._loaded[place]
            self._given = []

    def discard(self) -> None:
        """Discard the residuals of the last call, because its results are not used."""
        self._is_new, self._given = False, []
        for each in self._all():
            each.discard()

    def _all(self) -> list[Feedback | LowRankMatrices]:
        return [*self._feedbacks.values(), *([] if self._matrices is None else [self._matrices])]

    # The residuals ----------------------------------------------------------------------------------------------------

    def residuals(self) -> dict[int, Residual]:
        """Return all residuals, by place in the list."""
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
        """Replace all residuals by these, by place in the list."""
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

_lock = Lock()  # graphs run on threads of their frameworks
_calls: WeakSet[CallResiduals] = WeakSet()
_waiting: Residuals = {}  # for later calls
_finishing: list[Callable[[], None]] = []


def before_reading(finish: Callable[[], None]) -> None:
    """Register `finish`, which waits for steps that are computed ahead, to be called before residuals are read."""
    _finishing.append(finish)


def finish() -> None:
    """Wait for steps that are computed ahead, and settle them."""
    for each in _finishing:
        each()
    settle()


def are_kept() -> bool:
    """Return whether this process has gradients with error feedback."""
    return bool(_calls or _waiting)


def settle() -> None:
    """Keep the residuals of all calls, because all steps so far are complete."""
    for each in _known():
        each.settle()


def discard() -> None:
    """Discard the residuals of all calls since the last step boundary, because their results are not used."""
    for each in _known():
        each.discard()


def residuals() -> Residuals:
    """Return all residuals of this rank."""
    found = {name: dict(places) for name, places in _waiting.items()}
    for each in _known():
        places = found.setdefault(each.gradients, {})
        for place, residual in each.residuals().items():
            places[place] = _sum(places.get(place, Residual()), residual)
    return {name: places for name, places in found.items() if places}


def load(given: Residuals) -> None:
    """Replace all residuals of this rank by `given`."""
    with _lock:
        _waiting.clear()
        _waiting.update({name: dict(places) for name, places in given.items()})
    for each in _known():
        each.load(_taken(each.gradients, each.wanted()))


def _known() -> list[CallResiduals]:
    with _lock:
        return list(_calls)


def _taken(gradients: str, wanted: Mapping[int, Shape]) -> dict[int, Residual]:
    """Remove and return the waiting residuals of gradients with these shapes, by place."""
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
    """Move the residuals of all calls to the waiting ones, since the next world makes other calls."""
    discard()
    found = residuals()
    with _lock:
        _calls.clear()
        _waiting.clear()
        _waiting.update(found)


world.on_leaving(_leave)
