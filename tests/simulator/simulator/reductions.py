"""NCCL's reductions, in the order of ranks: sixteen-bit floats are summed in 32 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BFLOAT16 = 9
_TYPES = {0: "i1", 1: "u1", 2: "i4", 3: "u4", 4: "i8", 5: "u8", 6: "f2", 7: "f4", 8: "f8", BFLOAT16: "u2"}
_SUM, _PROD, _MAX, _MIN, _AVG = range(5)


def itemsize(datatype: int) -> int:
    """Return the bytes of an element of an ncclDataType_t."""
    return np.dtype(_TYPES[datatype]).itemsize


def is_type(datatype: int) -> bool:
    """Whether NCCL has the data type."""
    return datatype in _TYPES


def is_op(op: int) -> bool:
    """Whether NCCL has the reduction."""
    return op in range(5)


def reduce(parts: Sequence[bytes], datatype: int, op: int) -> bytes:
    """Return the reduction of all ranks' parts."""
    arrays = [_decode(part, datatype) for part in parts]
    result = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            if op in (_SUM, _AVG):
                result += array
            elif op == _PROD:
                result *= array
            else:
                (np.maximum if op == _MAX else np.minimum)(result, array, out=result)
        if op == _AVG:
            count = len(parts)
            result = result / result.dtype.type(count) if result.dtype.kind == "f" else result // count
        return _encode(result, datatype)


def _decode(part: bytes, datatype: int) -> Array:
    stored = np.frombuffer(part, _TYPES[datatype])
    if datatype == BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32) if stored.dtype == np.float16 else stored


def _encode(result: Array, datatype: int) -> bytes:
    if datatype != BFLOAT16:
        return result.astype(_TYPES[datatype]).tobytes()
    bits = result.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest, to even when there are two
    return np.where(np.isnan(result), 0x7FC0, rounded).astype(np.uint16).tobytes()
