"""The results of reductions, in plain numpy."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import distrun

Array = np.ndarray[Any, Any]


@functools.cache
def hosts() -> list[list[int]]:
    """The ranks of each host. All ranks have to ask for the first time at the same place."""
    names = distrun.allgather_object(distrun.topology().hostname)
    return [[rank for rank, other in enumerate(names) if other == name] for name in dict.fromkeys(names)]


def hosts_of(process_set: distrun.ProcessSet) -> list[list[int]]:
    """The ranks of a set on each of its hosts, by their positions in the set. To be called after `hosts`."""
    assert process_set.ranks is not None
    names = [next(name for name, those in enumerate(hosts()) if rank in those) for rank in process_set.ranks]
    return [[place for place, other in enumerate(names) if other == name] for name in dict.fromkeys(names)]


def reduce(
    parts: Sequence[Array],
    op: object,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: distrun.ProcessSet | None = None,
) -> Array:
    """The ranks' arrays combined, in rank order; half precision in float32.

    Where hosts have several ranks, each host's are combined first, and then the results, which are as wide as the
    arrays.
    """
    layout = hosts() if process_set is None else hosts_of(process_set)
    most, dtype, is_average = max(map(len, layout)), parts[0].dtype, op == distrun.Average
    if len(layout) == 1 or most == 1 or (is_average and dtype.kind in "iu"):
        return _reduce(parts, op, prescale, postscale, len(parts))
    is_half = dtype.itemsize == 2 and dtype.kind not in "iu"
    weight = 1 / most if is_half and is_average else 1.0  # so that the sums of a host's ranks do not overflow
    within = distrun.Sum if is_average else op
    each = [_reduce([parts[rank] for rank in host], within, prescale, weight, 1) for host in layout]
    return _reduce(each, op, 1.0, postscale, len(parts) * weight)


def _reduce(parts: Sequence[Array], op: object, prescale: float, postscale: float, divisor: float) -> Array:
    dtype = parts[0].dtype
    with np.errstate(all="ignore"):
        if dtype == np.bool_:
            combine = {distrun.Min: np.logical_and, distrun.Product: np.logical_and}.get(op, np.logical_or)
            return np.asarray(_fold(parts, combine))
        wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
        if op == distrun.Average and dtype.kind in "iu":
            wide = np.dtype(f"{dtype.kind}8")
        scaled = [_scaled(part.astype(wide), prescale) for part in parts]
        combine = {distrun.Min: np.minimum, distrun.Max: np.maximum, distrun.Product: np.multiply}.get(op, np.add)
        total = np.asarray(_fold(scaled, combine)).astype(wide)
        if op == distrun.Average:
            # fmod has the sign of the dividend, so what is left divides exactly, and the quotient is rounded to zero.
            total = (total - np.fmod(total, divisor)) // divisor if wide.kind in "iu" else total / wide.type(divisor)
        return np.asarray(_scaled(total, postscale)).astype(dtype)


def _fold(parts: Sequence[Array], combine: Any) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = combine(total, part)
    return total


def _scaled(values: Array, factor: float) -> Array:
    if factor == 1.0:
        return values
    if values.dtype.kind in "iu":
        return np.trunc(values * np.float64(factor)).astype(values.dtype)
    return values * values.dtype.type(factor)


def check(actual: Array, expected: Array, exact: bool) -> None:
    """Equal; where a division is involved, up to the last bits of the type."""
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if expected.size == 0:
        return
    if exact or expected.dtype.kind in "biu":
        equal = (actual == expected) | ((actual != actual) & (expected != expected))
        assert bool(np.all(equal)), (actual[~equal], expected[~equal])
        return
    if expected.dtype.itemsize == 2:
        tolerance = 2.0**-7 if expected.dtype.kind != "f" or expected.dtype.name == "bfloat16" else 2.0**-10
        actual, expected = actual.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=1e-7)
    else:
        tolerance = 4 * float(np.finfo(expected.dtype).eps)
        np.testing.assert_allclose(
            actual, expected, rtol=tolerance, atol=tolerance if expected.dtype.kind == "c" else 0
        )
