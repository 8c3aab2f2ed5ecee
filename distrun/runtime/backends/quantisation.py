"""Quantisation: floats as integers of 8 or 4 bits, in blocks of 256 that have a scale each.

The scale of a block is its largest absolute value divided by the largest integer, 127 or 7, so that no value is further
off than half a scale. (T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer: 8-bit Optimizers via Block-wise
Quantization, 2022, has blocks for the same reason: one large value spoils few others.) A block with a value that is not
finite comes back with none that is: whoever looks for infinities and NaNs in sums, as a gradient scaler does, finds
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.runtime.backends.base import Flat

BLOCK = 256
"""Values that share a scale."""
AT_ONCE = 256 * BLOCK
"""Values quantised at a time: two copies of them stay in a core's second-level cache."""
_LEAST_SCALE = np.float32(2.0**-125)  # its reciprocal is finite; smaller values become zero
_ALIGNMENT = 4
_MAGNITUDE = np.uint32(0x7FFFFFFF)  # of a float32: all but its sign


class Quantiser:
    """Quantises arrays, one at a time.

    In bytes, an array is the float32 scales of its blocks, then its integers: int8, or two of 4 bits in a byte, which
    are 8 more than they mean, the first in the lower half. Unused bytes at the end make it a multiple of 4.
    """

    def __init__(self, bits: int) -> None:
        """`bits` of an integer: 8 or 4."""
        self._per_byte = 8 // bits
        self._most = np.float32(2 ** (bits - 1) - 1)
        self._values = np.empty(AT_ONCE, np.float32)
        self._codes = np.zeros(AT_ONCE, np.uint8)

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many quantised values."""
        codes = -(-count // self._per_byte)
        return 4 * -(-count // BLOCK) + -(-codes // _ALIGNMENT) * _ALIGNMENT

    def quantise(self, values: Flat, out: Flat, losses: tuple[Flat, Flat] | None = None) -> None:
        """Quantise flat floats into `nbytes` bytes.

        `losses` are what these values have lost before, which is added to them, and where to write what they lose now,
        both float32. A block that is not finite, of a step that will be left out, loses nothing, lest it spoil the
        next.
        """
        scales, codes = self._parts(out, values.size)
        with np.errstate(all="ignore"):  # of what is not finite
            for first, last, width in _spans(values.size):
                part = values[first:last].astype(np.float32, copy=False)
                lost = None
                if losses is not None:
                    lost = losses[1][first:last]
                    part = np.add(part, losses[0][first:last], out=lost)
                self._quantise_blocks(
                    part.reshape(-1, width),
                    scales[first // BLOCK : -(-last // BLOCK)],
                    codes[first // self._per_byte : -(-last // self._per_byte)],
                    None if lost is None else lost.reshape(-1, width),
                )

    def _quantise_blocks(self, blocks: Flat, scales: Flat, codes: Flat, lost: Flat | None) -> None:
        """Fill in the scales and the integers of blocks, and what they lose, which may have been the blocks."""
        flat = self._values[: blocks.size]
        scaled = flat.reshape(blocks.shape)
        # As integers, magnitudes are ordered as the numbers are, with NaN above all; numpy compares these faster.
        bits = scaled.view(np.uint32)
        np.bitwise_and(blocks.view(np.uint32), _MAGNITUDE, out=bits)
        np.divide(bits.max(1).view(np.float32), self._most, out=scales)
        scales[scales < _LEAST_SCALE] = 0
        reciprocals = np.reciprocal(scales)
        reciprocals[scales == 0] = 0
        np.multiply(blocks, reciprocals[:, None], out=scaled)
        np.rint(flat, out=flat)
        if self._per_byte == 1:
            codes.view(np.int8)[:] = flat
        else:
            self._pack(flat, codes)
        if lost is not None:
            np.multiply(scaled, scales[:, None], out=scaled)
            np.subtract(blocks, scaled, out=lost)
            if not np.isfinite(scales).all():
                lost[~np.isfinite(scales)] = 0

    def _pack(self, integers: Flat, target: Flat) -> None:
        """Write integers of 4 bits, two in a byte."""
        codes = self._codes[: integers.size + integers.size % 2]
        codes.view(np.int8)[: integers.size] = integers
        codes += np.uint8(8)
        pairs = codes.view("<u2")
        pairs &= np.uint16(0x0F0F)  # what is not finite has given any integer
        target[:] = pairs | pairs >> np.uint16(4)

    def restore(self, raw: Flat, out: Flat) -> None:
        """Fill `out` with the values that were quantised into `raw`."""
        scales, codes = self._parts(raw, out.size)
        with np.errstate(all="ignore"):
            for first, last, width in _spans(out.size):
                part = codes[first // self._per_byte : -(-last // self._per_byte)]
                integers = part.view(np.int8) if self._per_byte == 1 else self._unpack(part, last - first)
                target = out[first:last].reshape(-1, width)
                np.multiply(integers.reshape(-1, width), scales[first // BLOCK : -(-last // BLOCK), None], out=target)

    def _unpack(self, codes: Flat, count: int) -> NDArray[np.int8]:
        pairs = codes.astype("<u2")
        pairs |= pairs << np.uint16(4)
        pairs &= np.uint16(0x0F0F)
        integers = pairs.view(np.int8)[:count]
        integers -= np.int8(8)
        return integers

    @staticmethod
    def _parts(raw: Flat, count: int) -> tuple[NDArray[Any], Flat]:
        """Return the scales of a quantised array, and its integers."""
        stop = 4 * -(-count // BLOCK)
        return raw[:stop].view(np.float32), raw[stop:]


def _spans(count: int) -> list[tuple[int, int, int]]:
    """Return the parts in which so many values are quantised: from where, to where, and the values of a block there.

    All parts but the last have whole blocks; that one is shorter than a block, and one block by itself.
    """
    whole = count - count % BLOCK
    spans = [(first, min(whole, first + AT_ONCE), BLOCK) for first in range(0, whole, AT_ONCE)]
    return [*spans, (whole, count, count - whole)] if whole < count else spans
