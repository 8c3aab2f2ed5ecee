"""Quantisation: floats in 8 or 4 bits, in blocks of 256 that have a scale each.

With 8 bits these are integers, and the scale is the largest absolute value divided by 127, so that no value is further
off than half a scale. (T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer: 8-bit Optimizers via Block-wise
Quantization, 2022, has blocks for the same reason: one large value spoils few others.)

With 4 bits they are signs and powers of two, from the largest absolute value, which is the scale, down to a 64th of it,
and zero. Large values are off by up to 5/14 of themselves, and small ones by no more than that, where 15 equal steps
would make most of them zero: an optimizer that divides by the size of gradients, as Adam does, feels the difference.
For its sake they are rounded up not from halfway between two powers on, 1.5 times the lower one, but from 14/9: so the
squares of equally spread values keep their mean, to which halfway would add 7 %, and steps would get shorter.
(D. Miyashita, E. H. Lee, B. Murmann: Convolutional Neural Networks using Logarithmic Data Representation, 2016.)

A block with a value that is not finite comes back with none that is: whoever looks for infinities and NaNs in sums, as
a gradient scaler does, finds them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from distrun.runtime.backends.base import Flat

BLOCK = 256
"""Values that share a scale."""
AT_ONCE = 256 * BLOCK
"""Values quantised at a time: two copies of them stay in a core's second-level cache."""
LEAST_SCALE = np.float32(2.0**-119)
"""Scales below it become zero. So a 64th of a scale is a normal number, as is a scale's reciprocal."""
_ALIGNMENT = 4
_MAGNITUDE = np.uint32(0x7FFFFFFF)  # of a float32: all but its sign


class Quantiser(ABC):
    """Quantises arrays, one at a time.

    In bytes, an array is the float32 scales of its blocks, then its codes. Unused bytes at the end make it a multiple
    of 4.
    """

    _per_byte: int  # codes in a byte

    def __init__(self) -> None:
        self._values = np.empty(AT_ONCE, np.float32)

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
        scales, codes = _parts(out, values.size)
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
        """Fill in the scales and the codes of blocks, and what they lose, which may have been the blocks."""
        flat = self._values[: blocks.size]
        rounded = flat.reshape(blocks.shape)
        # As integers, magnitudes are ordered as the numbers are, with NaN above all; numpy compares these faster.
        bits = rounded.view(np.uint32)
        np.bitwise_and(blocks.view(np.uint32), _MAGNITUDE, out=bits)
        reciprocals = self._fill_in(scales, bits.max(1).view(np.float32))
        np.multiply(blocks, reciprocals[:, None], out=rounded)
        self._round(flat)
        self._encode(flat, codes)
        if lost is not None:
            np.multiply(rounded, scales[:, None], out=rounded)
            np.subtract(blocks, rounded, out=lost)
            if not np.isfinite(scales).all():
                lost[~np.isfinite(scales)] = 0

    def restore(self, raw: Flat, out: Flat) -> None:
        """Fill `out` with the values that were quantised into `raw`."""
        scales, codes = _parts(raw, out.size)
        with np.errstate(all="ignore"):
            for first, last, width in _spans(out.size):
                part = self._decode(codes[first // self._per_byte : -(-last // self._per_byte)], last - first)
                target = out[first:last].reshape(-1, width)
                np.multiply(part.reshape(-1, width), scales[first // BLOCK : -(-last // BLOCK), None], out=target)

    @abstractmethod
    def _fill_in(self, scales: Flat, largest: Flat) -> Flat:
        """Fill in the scales of blocks, given their largest magnitudes; return by what to multiply their values."""

    @abstractmethod
    def _round(self, scaled: Flat) -> None:
        """Round multiplied values, in place, to what a code can stand for."""

    @abstractmethod
    def _encode(self, rounded: Flat, codes: Flat) -> None:
        """Write the codes of rounded values."""

    @abstractmethod
    def _decode(self, codes: Flat, count: int) -> Flat:
        """Return so many rounded values, from their codes."""


class Integers(Quantiser):
    """Values as int8."""

    _per_byte = 1
    _most = np.float32(127)

    def _fill_in(self, scales: Flat, largest: Flat) -> Flat:
        np.divide(largest, self._most, out=scales)
        scales[scales < LEAST_SCALE] = 0
        return _quotients(np.float32(1), scales)

    def _round(self, scaled: Flat) -> None:
        np.rint(scaled, out=scaled)

    def _encode(self, rounded: Flat, codes: Flat) -> None:
        codes.view(np.int8)[:] = rounded

    def _decode(self, codes: Flat, count: int) -> Flat:
        return codes.view(np.int8)


class Powers(Quantiser):
    """Values as powers of two, two in a byte, the first in the lower half.

    The lower 3 bits of a code are 7 for the scale, 6 for half of it, and so on until 1 for a 64th, and 0 for zero; the
    highest bit is the sign.
    """

    _per_byte = 2
    _nine_sevenths = np.float32(9 / 7)  # of 7/9, from where on a half becomes 1, is 1
    _sign_and_exponent = np.uint32(0xFF800000)
    _large = np.float32(1.5 * 2.0**17)  # the numbers beside it are a 64th away

    def __init__(self) -> None:
        super().__init__()
        self._shifted = np.empty(AT_ONCE, np.uint32)
        self._codes, self._signs = np.empty(AT_ONCE, np.uint16), np.empty(AT_ONCE, np.uint16)
        self._places = np.empty(AT_ONCE // 2, np.intp)

    def _fill_in(self, scales: Flat, largest: Flat) -> Flat:
        scales[:] = largest
        scales[scales < LEAST_SCALE] = 0
        return _quotients(self._nine_sevenths, scales)

    def _round(self, scaled: Flat) -> None:
        bits = scaled.view(np.uint32)
        bits &= self._sign_and_exponent
        scaled += self._large
        scaled -= self._large  # now zero, if it was less than a 64th

    def _encode(self, rounded: Flat, codes: Flat) -> None:
        count = rounded.size + rounded.size % 2
        shifted, ours, signs = self._shifted[: rounded.size], self._codes[:count], self._signs[:count]
        np.right_shift(rounded.view(np.uint32), np.uint32(23), out=shifted)
        ours[: rounded.size], ours[rounded.size :] = shifted, 0
        np.right_shift(ours, np.uint16(5), out=signs)
        signs &= np.uint16(8)
        ours &= np.uint16(7)  # the exponent of 1 ends in these bits, and that of a 64th in 1
        ours |= signs
        pairs = ours.view("<u4")
        codes[:] = pairs | pairs >> np.uint32(12)

    def _decode(self, codes: Flat, count: int) -> Flat:
        places = self._places[: codes.size]
        places[:] = codes
        np.take(_PAIRS, places, out=self._values[: 2 * codes.size].view(np.uint64), mode="clip")
        return self._values[:count]


def _quotients(number: np.float32, scales: Flat) -> Flat:
    """Return a number divided by scales; 0 where a scale is."""
    result = np.divide(number, scales)
    result[scales == 0] = 0
    return result


def _levels() -> Flat:
    """Return what each byte of two powers stands for: two float32, as one number of 64 bits."""
    powers = np.append(np.float32(0), np.exp2(np.arange(-6, 1, dtype=np.float32)))
    levels = np.concatenate([powers, -powers])
    both = np.stack(np.broadcast_arrays(levels, levels[:, None]), axis=-1)
    return np.ascontiguousarray(both).view(np.uint64).reshape(256)


_PAIRS = _levels()

QUANTISERS: dict[str, type[Quantiser]] = {"int8": Integers, "int4": Powers}
"""The quantisers by the names that the types of the wire have."""


def _parts(raw: Flat, count: int) -> tuple[Flat, Flat]:
    """Return the scales of a quantised array, and its codes."""
    stop = 4 * -(-count // BLOCK)
    return raw[:stop].view(np.float32), raw[stop:]


def _spans(count: int) -> list[tuple[int, int, int]]:
    """Return the parts in which so many values are quantised: from where, to where, and the values of a block there.

    All parts but the last have whole blocks; that one is shorter than a block, and one block by itself.
    """
    whole = count - count % BLOCK
    spans = [(first, min(whole, first + AT_ONCE), BLOCK) for first in range(0, whole, AT_ONCE)]
    return [*spans, (whole, count, count - whole)] if whole < count else spans
