"""Broadcasts of many arrays at the speed of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.runtime import collectives
from distrun.runtime.world import world

LARGE = 1 << 18
"""Bytes from which on an array travels by itself, which spares it two copies; smaller ones are packed into one."""


def broadcast_arrays(arrays: Sequence[NDArray[Any]], root_rank: int, name: str) -> None:
    """Overwrite arrays with those of a rank, in place.

    Args:
        arrays: contiguous ones, of any dtypes whose elements are plain bytes, with the same sizes on all ranks.
        root_rank: the rank whose arrays they are.
        name: how the ranks match the operations.

    Raises:
        CollectiveError: the ranks have other sizes, or one is gone.
    """
    flats = [array.reshape(-1).view(np.uint8) for array in arrays if array.nbytes]
    small = [flat for flat in flats if flat.nbytes < LARGE]
    handles = [
        collectives.broadcast_async_(flat, root_rank, f"{name}.{place}")
        for place, flat in enumerate(flats)
        if flat.nbytes >= LARGE
    ]
    if small:
        packed = collectives.empty(sum(flat.nbytes for flat in small), np.uint8)
        if world.rank() == root_rank:
            np.concatenate(small, out=packed)
        collectives.broadcast_async_(packed, root_rank, f"{name}.packed").wait()
        if world.rank() != root_rank:
            start = 0
            for flat in small:
                flat[:] = packed[start : start + flat.nbytes]
                start += flat.nbytes
    for handle in handles:
        handle.wait()
