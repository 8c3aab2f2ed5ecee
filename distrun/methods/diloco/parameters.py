"""The parameters of a model, as outer steps use them: flat arrays, and their exchange."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from distrun.methods.diloco.fragments import Fragment
from distrun.runtime import collectives
from distrun.runtime.collectives.call import Call
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.handle import AnyHandle, Handle
from distrun.runtime.operations.wire import WITH_FEEDBACK
from distrun.runtime.world import world

Array = Any
"""A flat array of numpy or torch."""


class Parameters(Protocol):
    """The parameters of a model, in a fixed order, the same on all ranks."""

    @property
    def piece(self) -> int:
        """The number of elements that the arithmetic processes at a time."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """The number of elements of each parameter."""
        ...

    def zeros(self, count: int) -> Array:
        """Return an array of zeros on the parameters' device."""
        ...

    def room(self, count: int) -> Array:
        """Return an uninitialised array for exchanges, for this world only."""
        ...

    def read(self, fragment: Fragment, out: Array) -> None:
        """Copy the parameters of `fragment` into the flat array `out`."""
        ...

    def write(self, fragment: Fragment, flat: Array) -> None:
        """Overwrite the parameters of `fragment` with `flat`."""
        ...

    def add(self, fragment: Fragment, flat: Array) -> None:
        """Add `flat` to the parameters of `fragment`."""
        ...

    def subtract(self, left: Array, right: Array, out: Array) -> None:
        """Write the difference of two flat arrays into a third one, which may be either of them."""
        ...

    def average(self, fragment: Fragment, flat: Array, call: Call, feedback: Feedback) -> AnyHandle:
        """Start averaging an array over the ranks, in place."""
        ...

    def broadcast(self, flat: Array, root_rank: int, name: str) -> None:
        """Overwrite an array with a rank's."""
        ...

    def digest(self, flat: Array) -> int:
        """Return a number that differs if the elements differ."""
        ...


def start_average(handle: Handle, fragment: Fragment, feedback: Feedback) -> Handle:
    """Start the allreduce of one flat array of `fragment`. Each parameter is quantised or not by its own size."""
    wire = world.engine().backend.quantisation_of(handle.request)
    if wire:
        handle.request = handle.request._replace(shapes=tuple((size,) for size in fragment.sizes))
    if wire == WITH_FEEDBACK:
        handle.feedback = feedback
    return handle.engine.submit(handle)


class HostArrays:
    """The part of `Parameters` for numpy arrays, for faces that copy their parameters to the host."""

    piece = 1 << 15
    dtype: np.dtype[Any] = np.dtype(np.float32)
    """The dtype of anchors: float64 if the parameters are."""

    def zeros(self, count: int) -> Array:
        """Return an array of zeros."""
        return np.zeros(count, self.dtype)

    def room(self, count: int) -> Array:
        """Return an array in memory that collectives use without a copy."""
        return collectives.empty(count, self.dtype)

    def subtract(self, left: Array, right: Array, out: Array) -> None:
        """Write the difference of two flat arrays into a third one, which may be either of them."""
        np.subtract(left, right, out=out)

    def average(self, fragment: Fragment, flat: Array, call: Call, feedback: Feedback) -> AnyHandle:
        """Start averaging an array over the ranks, in place."""
        handle = Handle(world.engine(), call.request(flat.dtype.name, (flat.shape,)), [flat], [flat])
        return start_average(handle, fragment, feedback)

    def broadcast(self, flat: Array, root_rank: int, name: str) -> None:
        """Overwrite an array with a rank's."""
        collectives.broadcast_(flat, root_rank, name)

    def digest(self, flat: Array) -> int:
        """Return the CRC of the bytes of `flat`."""
        return zlib.crc32(flat)
