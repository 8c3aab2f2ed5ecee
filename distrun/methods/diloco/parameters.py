"""The parameters of a model, as outer steps use them: flat arrays, their exchange, and the arithmetic on them."""

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
"""A flat array of numpy or torch, of float32 or float64. Their operators mean the same in both."""


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
    """The part of `Parameters` for numpy arrays, documented there, for faces that copy their parameters to the host."""

    piece = 1 << 15
    dtype: np.dtype[Any] = np.dtype(np.float32)
    """The dtype of anchors: float64 if the parameters are."""

    def zeros(self, count: int) -> Array:
        return np.zeros(count, self.dtype)

    def room(self, count: int) -> Array:
        return collectives.empty(count, self.dtype)

    def subtract(self, left: Array, right: Array, out: Array) -> None:
        np.subtract(left, right, out=out)

    def average(self, fragment: Fragment, flat: Array, call: Call, feedback: Feedback) -> AnyHandle:
        handle = Handle(world.engine(), call.request(flat.dtype.name, (flat.shape,)), [flat], [flat])
        return start_average(handle, fragment, feedback)

    def broadcast(self, flat: Array, root_rank: int, name: str) -> None:
        collectives.broadcast_(flat, root_rank, name)

    def digest(self, flat: Array) -> int:
        return zlib.crc32(flat)


def nesterov(anchor: Array, gradient: Array, velocity: Array | None, rate: float, momentum: float, piece: int) -> None:
    """Move `anchor` by the outer `gradient`, which is overwritten.

    The step is the same as in torch.optim.SGD with nesterov=True. Without a velocity, it is plain SGD. Memory is
    processed piece by piece, so that the data of several operations is still in cache.
    """
    for start in range(0, len(anchor), piece):
        part = slice(start, start + piece)
        step = gradient[part]
        if velocity is not None:
            within = velocity[part]
            within *= momentum
            within += step
            step += within * momentum
        step *= rate
        moved = anchor[part]
        moved -= step
