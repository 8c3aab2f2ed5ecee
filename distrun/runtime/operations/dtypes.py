"""The element types that distrun can move and reduce, by name.

A type has a *storage* dtype, the numpy dtype of its elements in memory, and an *accumulator* dtype, which sums are
formed in. They differ for the half-precision types: float16 and bfloat16 are summed in float32. numpy itself has no
bfloat16 dtype (ml_dtypes adds one, torch has one), so bfloat16 elements are stored as uint16 and converted by shifting
bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError
from distrun.native import Kernel

BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class ElementType:
    """A supported element type."""

    name: str
    storage: np.dtype[Any]
    accumulator: np.dtype[Any]

    @property
    def is_converted(self) -> bool:
        """Whether elements are converted to another type before they are combined."""
        return self.storage != self.accumulator

    def decode(self, source: NDArray[Any], out: NDArray[Any]) -> None:
        """Convert storage elements to accumulator elements."""
        if self.name in _DECODE and _DECODE[self.name](out.size, source, out):
            return
        if self.name != BFLOAT16:
            out[:] = source
            return
        np.left_shift(source, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")

    def encode(self, source: NDArray[Any], out: NDArray[Any]) -> None:
        """Convert accumulator elements to storage elements, rounding to nearest even. `source` stays as it is."""
        if self.name in _ENCODE and _ENCODE[self.name](out.size, source, out):
            return
        if self.name != BFLOAT16:
            out[:] = source
            return
        bits = source.view(np.uint32)
        # Add just under half of the last bit that stays, plus that bit: a tie then rounds up only to an even result.
        rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
        rounded >>= np.uint32(16)
        out[:] = rounded
        # Rounding can carry a NaN with a low mantissa into infinity, but a NaN must stay one.
        nan = np.isnan(source)
        if nan.any():
            out[nan] = 0x7FC0


def _plain(dtype: np.dtype[Any]) -> ElementType:
    return ElementType(dtype.name, dtype, dtype)


_PLAIN = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"),
)

ELEMENT_TYPES: dict[str, ElementType] = {
    **{np.dtype(name).name: _plain(np.dtype(name)) for name in _PLAIN},
    "float16": ElementType("float16", np.dtype(np.float16), np.dtype(np.float32)),
    BFLOAT16: ElementType(BFLOAT16, np.dtype(np.uint16), np.dtype(np.float32)),
}

_DECODE = {"float16": Kernel("decode_float16", "ef"), BFLOAT16: Kernel("decode_bfloat16", "Hf")}
_ENCODE = {"float16": Kernel("encode_float16", "fe"), BFLOAT16: Kernel("encode_bfloat16", "fH")}

_BY_DTYPE: dict[np.dtype[Any], str] = {
    element.storage: name for name, element in ELEMENT_TYPES.items() if name != BFLOAT16
}


def name_of(dtype: np.dtype[Any]) -> str:
    """The name of the element type for a numpy (or ml_dtypes) dtype.

    Raises:
        UsageError: distrun cannot move elements of this dtype.
    """
    name = _BY_DTYPE.get(dtype)
    if name is not None:
        return name
    if dtype.name == BFLOAT16:
        return BFLOAT16
    if not dtype.isnative:
        raise UsageError(
            f"dtype {dtype.str!r} is not in this machine's byte order: convert it with .astype({dtype.name!r})"
        )
    known = ", ".join(ELEMENT_TYPES)
    raise UsageError(
        f"dtype {dtype} cannot travel as an array (known: {known}): use broadcast_object or allgather_object"
    )
