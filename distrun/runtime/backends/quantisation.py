"""Quantisation: encodes floats in 8 or 4 bits, in blocks of 256 values with one scale each.

With 8 bits, the codes are integers, and the scale is the largest absolute value divided by 127, so the error of a value
is at most half the scale. (T. Dettmers, M. Lewis, S. Shleifer, L. Zettlemoyer: 8-bit Optimizers via Block-wise
Quantization, 2022, has blocks for the same reason: one large value spoils few others.)

With 4 bits, the codes are zero and signed powers of two, from the largest absolute value, which is the scale, down to a
64th of it. The relative error is at most 5/14, for values down to 7/9 of this 64th. Smaller ones become zero. 15 equal
steps would turn most small values into zeros, which harms an optimizer that divides by the size of gradients, as Adam
does.

A value between two powers of two is rounded up from 14/9 of the lower one on, not from 1.5. With 14/9, the mean square
of uniformly distributed values stays the same. With 1.5 it would grow by 7 %, and Adam's steps would get shorter. (D.
Miyashita, E. H. Lee, B. Murmann: Convolutional Neural Networks using Logarithmic Data Representation, 2016.)

If one value of a block is infinite or NaN, no value of the decoded block is finite. So code that looks for infinities
and NaNs in sums, as a gradient scaler does, finds them.

Rejected in place of 14/9: halfway (over 40 seeds the loss of the MLP in benchmarks/hosts/quality.py was 0.52 % above
that of float32 where gradients are rounded once and 0.95 % where twice, against -0.13 % and 0.22 % with 14/9), 1.41
(2.9 % above) and 1.6 (0.5 % below). Over 8 seeds the sizes of FP4 (E2M1), powers of 1.6 or 1.8, equal steps, blocks of
128, feedback that fades, and scales with the least squared error were no better than halfway. SGD does not distinguish
1.5 from 14/9.

Where there is a library of `distrun.native`, quantise.c does all of it in one pass. Without it, the passes of numpy are
what a step with int4 waits for at 1 Gbit/s. So values become *steps*, single bytes, as early as possible, and tables
turn steps into codes two at a time and codes into steps four at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from distrun.native import Kernel
from distrun.runtime.backends.base import Flat

BLOCK = 256
"""The number of values that share a scale."""
AT_ONCE = 256 * BLOCK
"""The number of values that are quantised at a time: two float32 copies of them fit in a core's second-level cache."""
LEAST_SCALE = np.float32(2.0**-119)
"""Smaller scales become zero. So a 64th of a scale and the reciprocal of a scale are normal numbers, not denormal."""
_ALIGNMENT = 4
_MAGNITUDE = np.uint32(0x7FFFFFFF)  # of a float32: all but its sign


class Quantiser(ABC):
    """Quantises and restores flat float arrays, one at a time.

    A quantised array is the float32 scales of its blocks, then the codes of its values, padded to a multiple of 4
    bytes.

    A code stands for a step, an int8. A value is its step times the unit of its block, which depends on the scale.
    """

    _per_byte: int  # codes in a byte
    _quantise_kernel: Kernel
    _restore_kernel: Kernel

    def __init__(self) -> None:
        self._values = np.empty(AT_ONCE, np.float32)
        self._steps = np.zeros(AT_ONCE, np.int8)

    def nbytes(self, count: int) -> int:
        """Return the size in bytes of `count` quantised values."""
        codes = -(-count // self._per_byte)
        return 4 * -(-count // BLOCK) + -(-codes // _ALIGNMENT) * _ALIGNMENT

    def quantise(
        self, values: Flat, out: Flat, residuals: tuple[Flat, Flat] | None = None, restored: Flat | None = None
    ) -> None:
        """Quantise `values` into `out`.

        Args:
            values: flat floats.
            out: uint8, `nbytes(values.size)` bytes.
            residuals: two float32 arrays: the old residuals, which are added to `values`, and the array for the new
                ones. The new residuals of a block that is not finite are zero: its training step will be skipped, and
                they must not spoil the next one.
            restored: receives the values that `restore` will make of `out`. It may be `values`.
        """
        scales, codes = _parts(out, values.size)
        old, lost = residuals or (None, None)
        if self._quantise_kernel(values.size, values, old, lost, restored, scales, codes):
            return
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
        """Fill in the `scales` and `codes` of `blocks`, and their residuals (`lost`) and `restored` values if given.

        `lost` and `restored` may be the memory of `blocks`.
        """
        flat = self._values[: blocks.size]
        multiplied = flat.reshape(blocks.shape)
        # Without the sign, the bits of float32 read as integers are ordered as the numbers are, with NaN above all.
        # numpy finds the largest integer faster than the largest float.
        bits = multiplied.view(np.uint32)
        np.bitwise_and(blocks.view(np.uint32), _MAGNITUDE, out=bits)
        factors = self._fill_in(scales, bits.max(1).view(np.float32))
        np.multiply(blocks, factors[:, None], out=multiplied)
        steps = self._steps[: blocks.size]
        self._round(flat, steps)
        infinite = ~np.isfinite(scales)
        if infinite.any():
            steps.reshape(blocks.shape)[infinite] = 0  # processors convert NaNs and infinities differently
        self._encode(steps, codes)
        if lost is None and restored is None:
            return
        back = restored if restored is not None and restored.dtype == np.float32 else multiplied
        np.multiply(steps.reshape(blocks.shape), self._units(scales)[:, None], out=back)
        if lost is not None:
            np.subtract(blocks, back, out=lost)
            lost[infinite] = 0
        if restored is not None and restored is not back:
            restored[:] = back

    def restore(self, raw: Flat, out: Flat) -> None:
        """Fill `out` with the values that `quantise` encoded in `raw`."""
        scales, codes = _parts(raw, out.size)
        if self._restore_kernel(out.size, scales, codes, out):
            return
        with _by_rows():
            for first, last, width in _spans(out.size):
                steps = self._decode(codes[first // self._per_byte :], last - first).reshape(-1, width)
                units = self._units(scales[first // BLOCK : -(-last // BLOCK)])
                np.multiply(steps, units[:, None], out=out[first:last].reshape(-1, width))

    @abstractmethod
    def _fill_in(self, scales: Flat, largest: Flat) -> Flat:
        """Fill in the `scales` of blocks from their `largest` magnitudes. Return each block's factor for `_round`."""

    @abstractmethod
    def _units(self, scales: Flat) -> Flat:
        """Return the units of blocks with these `scales`."""

    @abstractmethod
    def _round(self, multiplied: Flat, steps: Flat) -> None:
        """Fill in the `steps` of values that were `multiplied` by their block's factor. Overwrites `multiplied`."""

    @abstractmethod
    def _encode(self, steps: Flat, codes: Flat) -> None:
        """Write the codes of `steps` into `codes`."""

    @abstractmethod
    def _decode(self, codes: Flat, count: int) -> Flat:
        """Return the first `count` steps of `codes`, which may have more codes or padding after them."""


def _kernels(dtype: str) -> tuple[Kernel, Kernel]:
    """Return the functions of quantise.c that quantise and restore values of this wire dtype."""
    return Kernel(f"quantise_{dtype}", "fffffB"), Kernel(f"restore_{dtype}", "fBf")


class Integers(Quantiser):
    """Quantises values to int8: the unit is the scale, so a code is its step."""

    _per_byte = 1
    _quantise_kernel, _restore_kernel = _kernels("int8")
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
    """Quantises values to signed powers of two in 4 bits, two codes in a byte, the first in the lower half.

    The lower 3 bits of a code are 7 for the scale, 6 for half of it, and so on to 1 for a 64th, and 0 for zero. The
    highest bit is the sign. The unit is a 64th of the scale, so steps are powers of two as well.
    """

    _per_byte = 2
    _quantise_kernel, _restore_kernel = _kernels("int4")
    # Scaling by 9/7 before the mantissa is cut rounds up from 14/9 of a power of two, not from 1.5: see the module's
    # text.
    _nine_sevenths = np.float32(9 / 7)
    _sign_and_exponent = np.uint32(0xFF800000)
    _most = np.float32(64)

    def __init__(self) -> None:
        super().__init__()
        self._places = np.empty(AT_ONCE // 2, np.intp)

    def _fill_in(self, scales: Flat, largest: Flat) -> Flat:
        scales[:] = largest
        scales[scales < LEAST_SCALE] = 0
        factors = _quotients(self._nine_sevenths, scales)
        factors *= self._most  # exact: a power of two
        return factors

    def _units(self, scales: Flat) -> Flat:
        units: Flat = np.divide(scales, self._most)
        return units

    def _round(self, multiplied: Flat, steps: Flat) -> None:
        bits = multiplied.view(np.uint32)
        bits &= self._sign_and_exponent  # cuts the mantissa: rounds towards zero to a power of two
        steps[:] = multiplied  # the cast makes 0 of what is below 1

    def _encode(self, steps: Flat, codes: Flat) -> None:
        if steps.size % 2:
            steps = np.append(steps, np.int8(0))
        # The tables are indexed by two steps or four codes at a time. With mode="raise", `take` would copy its output
        # once more, and indices that are not intp would be converted for each call.
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
    """Return `number` divided by `scales`, and 0 where a scale is 0."""
    result = np.divide(number, scales)
    result[scales == 0] = 0
    return result


@contextmanager
def _by_rows() -> Iterator[None]:
    """Ignore floating-point warnings, and limit numpy's buffers to one block.

    With larger buffers, numpy copies the factor of a block for each of its values before it multiplies, which takes as
    long as the multiplication itself.
    """
    with np.errstate(all="ignore"):
        before = np.setbufsize(BLOCK)
        try:
            yield
        finally:
            np.setbufsize(before)


def _tables() -> tuple[Flat, Flat]:
    """Return the tables that `Powers` encodes and decodes with.

    The first is indexed by two steps, read as one 16-bit number, and has their two codes in a byte. Numbers that are
    not steps have the code 0. The second is indexed by four codes, read as one 16-bit number, and has their four steps
    as one 32-bit number.
    """
    steps = np.array([sign * each for sign in (1, -1) for each in (0, 1, 2, 4, 8, 16, 32, 64)], np.int8)
    codes = np.zeros(256, np.uint8)  # indexed by the bits of a step
    codes[steps.view(np.uint8)[1:8]] = np.arange(1, 8)
    codes[steps.view(np.uint8)[9:]] = np.arange(9, 16)
    numbers = np.arange(1 << 16)
    four = np.stack([steps[numbers >> shift & 15] for shift in (0, 4, 8, 12)], axis=-1)
    return codes[numbers & 255] | codes[numbers >> 8] << 4, four.view(np.uint32).reshape(-1)


_CODES, _STEPS = _tables()

QUANTISERS: dict[str, type[Quantiser]] = {"int8": Integers, "int4": Powers}
"""The quantisers, by the name of their wire dtype."""


def _parts(raw: Flat, count: int) -> tuple[Flat, Flat]:
    """Return views of the scales and the codes of a quantised array of `count` values."""
    stop = 4 * -(-count // BLOCK)
    return raw[:stop].view(np.float32), raw[stop:]


def _spans(count: int) -> list[tuple[int, int, int]]:
    """Return the spans in which `count` values are quantised, as (first, last, values in a block).

    All spans consist of whole blocks, except that a rest of less than `BLOCK` values is a last span of one short block.
    """
    whole = count - count % BLOCK
    spans = [(first, min(whole, first + AT_ONCE), BLOCK) for first in range(0, whole, AT_ONCE)]
    return [*spans, (whole, count, count - whole)] if whole < count else spans
