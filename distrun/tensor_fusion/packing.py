"""Packing flat arrays into one contiguous buffer, and unpacking them.

The result must equal the one of three lines: `buffer = concatenate(parts)`, reduce `buffer`, `parts = split(buffer)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flat = NDArray[Any]  # one-dimensional and contiguous


def pack(parts: Sequence[Flat], buffer: Flat) -> None:
    """Copy `parts`, one after the other, into `buffer`, which has their total size. All have the same dtype."""
    if len(parts) == 1:
        buffer[:] = parts[0]
    else:
        np.concatenate(parts, out=buffer)


def unpack(buffer: Flat, parts: Sequence[Flat]) -> None:
    """Copy `buffer` into `parts`, one after the other: the inverse of `pack`."""
    start = 0
    for part in parts:
        stop = start + part.size
        part[...] = buffer[start:stop]
        start = stop
