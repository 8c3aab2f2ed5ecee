"""Packing flat arrays into one contiguous buffer, and unpacking them.

The result must equal the one of three lines: `buffer = concatenate(parts)`, reduce `buffer`, `parts = split(buffer)`.
Kernels of `distrun.native` copy what is many arrays of numpy, which takes them as long as one large copy.

`small_as_one` does both for small arrays that are broadcast in place, in all frameworks.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.native import Kernel
from distrun.tensor_fusion.batching import FUSED_BELOW, fuse

Flat = NDArray[Any]  # one-dimensional and contiguous


FEW = 4
"""The number of arrays up to which a call of numpy for each takes no longer than a kernel."""

_HEAD = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)  # the bytes of an object before the address of its class


class _Move(Kernel):
    """A kernel that copies between many arrays and one. It finds their memory in their objects itself, because asking
    each array for its address takes longer than numpy's copy."""

    def function(self, variant: str) -> Any:
        function = super().function(variant) if sys.implementation.name == "cpython" else None
        if function is not None:
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
            function.restype = ctypes.c_int
        return function

    def moves(self, parts: Sequence[Flat], buffer: Flat) -> bool:
        """Copy, and return True. Return False, with nothing done, if numpy must do it."""
        function = self.best if len(parts) > FEW and type(buffer) is np.ndarray else None
        if function is None:
            return False
        objects = np.fromiter(parts, object, len(parts))
        return bool(function(id(objects), id(buffer), buffer.itemsize, _HEAD))


_PACK, _UNPACK = _Move("pack", ""), _Move("unpack", "")


def pack(parts: Sequence[Flat], buffer: Flat) -> None:
    """Copy `parts`, one after the other, into `buffer`, which has their total size. All have the same dtype, and none
    overlaps it."""
    if len(parts) == 1:
        buffer[:] = parts[0]
    elif not _PACK.moves(parts, buffer):
        np.concatenate(parts, out=buffer)


def unpack(buffer: Flat, parts: Sequence[Flat]) -> None:
    """Copy `buffer` into `parts`, one after the other: the inverse of `pack`."""
    if _UNPACK.moves(parts, buffer):
        return
    start = 0
    for part in parts:
        stop = start + len(part)
        part[...] = buffer[start:stop]
        start = stop


def small_as_one(
    flats: Sequence[Any], is_root: bool, empty: Callable[[int], Any], concatenate: Callable[..., object]
) -> tuple[list[Any], Callable[[], None]]:
    """Return the arrays to broadcast in place of `flats`, and a function to call when all of them have arrived.

    Large ones are broadcast as they are. The root packs small ones, and that function unpacks them on the other ranks.

    Args:
        flats: flat arrays of numpy or tensors of torch, all of bytes and on one device, with the same sizes on all
            ranks.
        is_root: whether this rank is the root.
        empty: returns a new flat array or tensor of this many bytes.
        concatenate: np.concatenate or torch.cat.
    """
    sent = []
    packed = []
    for batch in fuse(flats, lambda flat: flat.nbytes < FUSED_BELOW or None, lambda flat: int(flat.nbytes)):
        if len(batch) == 1:
            sent += batch
            continue
        buffer = empty(sum(flat.nbytes for flat in batch))
        sent.append(buffer)
        if is_root:
            concatenate(batch, out=buffer)
        else:
            packed.append((buffer, batch))

    def finish() -> None:
        for buffer, batch in packed:
            unpack(buffer, batch)

    return sent, finish
