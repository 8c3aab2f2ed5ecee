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

A block with a value that is not finite comes back with none that is: code that looks for infinities and NaNs in sums,
as a gradient scaler does, finds them.

Rejected in place of 14/9: halfway (over 40 seeds the loss of the MLP in benchmarks/hosts/quality.py was 0.52 % above
that of float32 where gradients are rounded once and 0.95 % where twice, against -0.13 % and 0.22 % with 14/9), 1.41
(2.9 % above) and 1.6 (0.5 % below). Over 8 seeds the sizes of FP4 (E2M1), powers of 1.6 or 1.8, equal steps, blocks of
128, feedback that fades, and scales with the least squared error were no better than halfway. SGD does not distinguish
1.5 from 14/9.

The passes of numpy are what a step with int4 waits for at 1 Gbit/s. So values become *steps*, single bytes, as early as
possible, and tables turn steps into codes two at a time and codes into steps four at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

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

    A code stands for a step, an int8: so many times the unit of its block, which the scale says.
    """

    _per_byte: int  # codes in a byte

    def __init__(self) -> None:
        self._values = np.empty(AT_ONCE, np.float32)
        self._steps = np.zeros(AT_ONCE, np.int8)

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many quantised values."""
        codes = -(-count // self._per_byte)
        return 4 * -(-count // BLOCK) + -(-codes // _ALIGNMENT) * _ALIGNMENT

    def quantise(
        self, values: Flat, out: Flat, residuals: tuple[Flat, Flat] | None = None, restored: Flat | None = None
    ) -> None:
        """Quantise flat floats into `nbytes` bytes.

        Args:
            values: the floats.
            out: where the bytes go.
            losses: what these values have lost before, which is added to them, and where to write what they lose now,
                both float32. A block that is not finite, of a step that will be left out, loses nothing, lest it spoil
                the next.
            restored: where to write what `restore` will make of the bytes; may be `values`.
        """
        scales, codes = _parts(out, values.size)
        with _by_rows():
            for first, last, width in _spans(values.size):
                part = values[first:last].astype(np.float32, copy=False)
                lost = None
                if residuals is not None:
                    lost = residuals[1][first:last]
                    part = np.add(part, residuals[0][first:last], out=lost)
                self._quantise_blocks(
                    part.reshape(-1, width),
                    scales[first // BLOCK : -(-last // BLOCK)],
                    codes[first // self._per_byte : -(-last // self._per_byte)],
                    None if lost is None else lost.reshape(-1, width),
                    None if restored is None else restored[first:last].reshape(-1, width),
                )

    def _quantise_blocks(
        self, blocks: Flat, scales: Flat, codes: Flat, lost: Flat | None, restored: Flat | None
    ) -> None:
        """Fill in the scales and the codes of blocks, and what they lose and become, for which their memory may be
        taken."""
        flat = self._values[: blocks.size]
        multiplied = flat.reshape(blocks.shape)
        # As integers, magnitudes are ordered as the numbers are, with NaN above all; numpy compares these faster.
        bits = multiplied.view(np.uint32)
        np.bitwise_and(blocks.view(np.uint32), _MAGNITUDE, out=bits)
        factors = self._fill_in(scales, bits.max(1).view(np.float32))
        np.multiply(blocks, factors[:, None], out=multiplied)
        steps = self._steps[: blocks.size]
        self._round(flat, steps)
        self._encode(steps, codes)
        if lost is None and restored is None:
            return
        back = restored if restored is not None and restored.dtype == np.float32 else multiplied
        np.multiply(steps.reshape(blocks.shape), self._units(scales)[:, None], out=back)
        if lost is not None:
            np.subtract(blocks, back, out=lost)
            if not np.isfinite(scales).all():
                lost[~np.isfinite(scales)] = 0
        if restored is not None and restored is not back:
            restored[:] = back

    def restore(self, raw: Flat, out: Flat) -> None:
        """Fill `out` with the values that were quantised into `raw`."""
        scales, codes = _parts(raw, out.size)
        with _by_rows():
            for first, last, width in _spans(out.size):
                steps = self._decode(codes[first // self._per_byte :], last - first).reshape(-1, width)
                units = self._units(scales[first // BLOCK : -(-last // BLOCK)])
                np.multiply(steps, units[:, None], out=out[first:last].reshape(-1, width))

    @abstractmethod
    def _fill_in(self, scales: Flat, largest: Flat) -> Flat:
        """Fill in the scales of blocks, given their largest magnitudes; return by what to multiply their values."""

    @abstractmethod
    def _units(self, scales: Flat) -> Flat:
        """Return the units of blocks with these scales."""

    @abstractmethod
    def _round(self, multiplied: Flat, steps: Flat) -> None:
        """Fill in the steps of multiplied values, which are overwritten."""

    @abstractmethod
    def _encode(self, steps: Flat, codes: Flat) -> None:
        """Write the codes of steps."""

    @abstractmethod
    def _decode(self, codes: Flat, count: int) -> Flat:
        """Return so many steps, from their codes, behind which there may be others, or unused bytes."""


class Integers(Quantiser):
    """Values as int8."""

    _per_byte = 1
    _most = np.float32(127)

    def _fill_in(self, scales: Flat, largest: Flat) -> Flat:
        np.divide(largest, self._most, out=scales)
        scales[scales < LEAST_SCALE] = 0
        return _quotients(np.float32(1), scales)

    def _units(self, scales: Flat) -> Flat:
        return scales

    def _round(self, multiplied: Flat, steps: Flat) -> None:
        np.rint(multiplied, out=multiplied)
        steps[:] = multiplied

    def _encode(self, steps: Flat, codes: Flat) -> None:
        codes.view(np.int8)[:] = steps

    def _decode(self, codes: Flat, count: int) -> Flat:
        return codes[:count].view(np.int8)


class Powers(Quantiser):
    """Values as powers of two, two in a byte, the first in the lower half.

    The lower 3 bits of a code are 7 for the scale, 6 for half of it, and so on until 1 for a 64th, and 0 for zero; the
    highest bit is the sign. The unit is a 64th of the scale, so steps are powers of two as well.
    """

    _per_byte = 2
    _nine_sevenths = np.float32(9 / 7)  # of 7/9, from where on a half becomes 1, is 1
    _sign_and_exponent = np.uint32(0xFF800000)
    _most = np.float32(64)

    def __init__(self) -> None:
        super().__init__()
        self._places = np.empty(AT_ONCE // 2, np.intp)

    def _fill_in(self, scales: Flat, largest: Flat) -> Flat:
        scales[:] = largest
        scales[scales < LEAST_SCALE] = 0
        factors = _quotients(self._nine_sevenths, scales)
        factors *= self._most  # which rounds nothing
        return factors

    def _units(self, scales: Flat) -> Flat:
        units: Flat = np.divide(scales, self._most)
        return units

    def _round(self, multiplied: Flat, steps: Flat) -> None:
        bits = multiplied.view(np.uint32)
        bits &= self._sign_and_exponent
        steps[:] = multiplied  # zero, if it was less than 1

    def _encode(self, steps: Flat, codes: Flat) -> None:
        if steps.size % 2:
            steps = np.append(steps, np.int8(0))
        places = self._places[: codes.size]
        places[:] = steps.view("<u2")
        np.take(_CODES, places, out=codes, mode="clip")

    def _decode(self, codes: Flat, count: int) -> Flat:
        fours = -(-count // 4)
        places = self._places[:fours]
        places[:] = codes[: 2 * fours].view("<u2")
        np.take(_STEPS, places, out=self._steps[: 4 * fours].view(np.uint32), mode="clip")
        return self._steps[:count]


def _quotients(number: np.float32, scales: Flat) -> Flat:
    """Return a number divided by scales; 0 where a scale is."""
    result = np.divide(number, scales)
    result[scales == 0] = 0
    return result


@contextmanager
def _by_rows() -> Iterator[None]:
    """Let numpy compute with what is not finite, and multiply blocks by a number each without a copy of that number for
    each value: it makes such copies where its buffers hold several blocks, which takes as long as to multiply."""
    with np.errstate(all="ignore"):
        before = np.setbufsize(BLOCK)
        try:
            yield
        finally:
            np.setbufsize(before)


def _tables() -> tuple[Flat, Flat]:
    """Return the codes, two in a byte, of each two steps, which are one number of 16 bits, and the steps, as one number
    of 32 bits, of each four codes, which are one of 16. What is no step has the code 0."""
    steps = np.array([sign * each for sign in (1, -1) for each in (0, 1, 2, 4, 8, 16, 32, 64)], np.int8)
    codes = np.zeros(256, np.uint8)  # by the bits of a step
    codes[steps.view(np.uint8)[1:8]] = np.arange(1, 8)
    codes[steps.view(np.uint8)[9:]] = np.arange(9, 16)
    numbers = np.arange(1 << 16)
    four = np.stack([steps[numbers >> shift & 15] for shift in (0, 4, 8, 12)], axis=-1)
    return codes[numbers & 255] | codes[numbers >> 8] << 4, four.view(np.uint32).reshape(-1)


_CODES, _STEPS = _tables()

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
