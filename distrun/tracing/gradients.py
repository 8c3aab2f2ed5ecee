"""The digest of the gradients that this rank has made in its first two steps, before they were reduced.

The launcher compares the digests of all ranks: if they are the same, so were the samples. Nothing is exchanged between
ranks, and later steps cost a comparison per operation.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from distrun.tracing import recording

STEPS = 2
SAMPLED = 4096
"""The most elements of an array that are looked at."""
_BFLOAT16_EXPONENT = 0x7F80

are_open = True
"""Whether gradients still have to be noted."""
_times: dict[str, int] = {}  # by name: how often an operation has come
_digest = 0


def note(name: str, arrays: Sequence[Any]) -> None:
    """Add gradients of this rank, flat numpy arrays that the operation `name` will reduce, to the digest. The third
    time that a name comes, the digest is complete.

    Infinite ones are left out, and arrays of zeros: they are the same whatever the samples are.
    """
    global are_open, _digest
    times = _times[name] = _times.get(name, 0) + 1
    if times > STEPS:
        are_open = False
        if recording.ring is not None:
            recording.ring.tell_gradients(_digest)
        return
    for place, array in enumerate(arrays):
        sample = array[:: 1 + array.size // (SAMPLED + 1)]
        if sample.any() and _is_finite(sample):
            # Added up, since the order in which a step's operations start may differ.
            seed = zlib.crc32(f"{name} {times} {place}".encode())
            _digest = (_digest + (seed << 32 | zlib.crc32(sample.tobytes(), seed))) % (1 << 64)


def _is_finite(sample: Any) -> bool:
    if sample.dtype == "uint16":  # how bfloat16 is stored
        return not (sample & _BFLOAT16_EXPONENT == _BFLOAT16_EXPONENT).any()
    return bool(abs(sample).max() < float("inf"))  # not if any is NaN
