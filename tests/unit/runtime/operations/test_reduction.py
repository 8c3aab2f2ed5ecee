"""The arithmetic against numpy's: every element type, operator, number of ranks and scale."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as npst
from session.tiers import one_in_gate

from distrun.errors import UsageError
from distrun.runtime.operations.dtypes import BFLOAT16, ELEMENT_TYPES
from distrun.runtime.operations.reduction import (
    CHUNK,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Reduction,
    Sum,
    check_op,
    reduction,
)

OPS = [op for op in ReduceOp if op is not ReduceOp.ADASUM]  # whose arithmetic is in backends/adasum
INTEGERS = [name for name, element in ELEMENT_TYPES.items() if element.storage.kind in "iu" and name != BFLOAT16]
FLOATS = ["float32", "float64", np.dtype(np.longdouble).name]
COMPLEX = [name for name in ELEMENT_TYPES if name.startswith("complex")]
HALVES = {"float16": np.dtype(np.float16), BFLOAT16: np.dtype(ml_dtypes.bfloat16)}
UFUNCS = {Average: np.add, Sum: np.add, Min: np.minimum, Max: np.maximum, Product: np.multiply}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow and NaN are results here


def combine(
    sources: Sequence[np.ndarray], name: str, op: ReduceOp, prescale: float = 1.0, postscale: float = 1.0
) -> np.ndarray:
    """The reduction of flat storage arrays, by three ways that must agree to the bit: one target, many, and in place.

    But for complex products: numpy multiplies with or without fused instructions, as the arrays happen to lie.
    """
    how = Reduction(ELEMENT_TYPES[name], op, len(sources), prescale, postscale)
    before = [source.copy() for source in sources]
    target = np.empty_like(sources[0])
    how.combine(sources, [target])
    assert [source.tobytes() for source in sources] == [source.tobytes() for source in before], "a source has changed"
    several = [np.empty_like(target) for _ in range(3)]
    how.combine(sources, several)
    in_place = [source.copy() for source in sources]
    how.combine(in_place, in_place)
    if op is not Product or name not in COMPLEX:
        for other in several + in_place:
            assert values(other) == values(target)
    return target


def values(array: np.ndarray) -> bytes:
    """Its bits, without the padding of long doubles."""
    if array.dtype.itemsize == 16 and array.dtype.kind == "f":
        return array.view(np.uint8).reshape(-1, 16)[:, :10].tobytes()
    if array.dtype.itemsize == 32:
        return array.view(np.uint8).reshape(-1, 16)[:, :10].tobytes()
    return array.tobytes()


def fold(parts: Sequence[np.ndarray], ufunc: np.ufunc) -> np.ndarray:
    total = parts[0]
    for part in parts[1:]:
        total = ufunc(total, part)
    return np.asarray(total)


def arrays_of(dtype: np.dtype, **elements: object) -> st.SearchStrategy[list[np.ndarray]]:
    """Draw the arrays of 1 to 5 ranks, flat and of one length."""
    return st.tuples(st.integers(1, 5), st.integers(0, 20)).flatmap(
        lambda sizes: st.lists(
            npst.arrays(dtype, sizes[1], elements=npst.from_dtype(dtype, **elements)),
            min_size=sizes[0],
            max_size=sizes[0],
        )
    )


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    assert np.array_equal(actual, expected, equal_nan=actual.dtype.kind in "fc"), (actual, expected)


# Integers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTEGERS)
@given(st.data())
def test_integers_wrap_as_numpys_do(name, data):
    parts = data.draw(arrays_of(np.dtype(name)))
    op = data.draw(st.sampled_from([Sum, Min, Max, Product]))
    same(combine(parts, name, op), fold(parts, UFUNCS[op]).astype(name))


@pytest.mark.parametrize("name", INTEGERS)
@given(st.data())
def test_an_integer_average_is_the_sum_divided_and_rounded_towards_zero(name, data):
    parts = data.draw(arrays_of(np.dtype(name)))
    wide = np.dtype(f"{np.dtype(name).kind}8")  # a sum may be larger than its elements' type holds, an average not
    total = fold([part.astype(wide) for part in parts], np.add)
    expected = [abs(int(element)) // len(parts) * (-1 if element < 0 else 1) for element in total]
    assert combine(parts, name, Average).tolist() == expected


@pytest.mark.parametrize("name", INTEGERS)
@given(st.data())
def test_integers_are_scaled_as_doubles_and_rounded_towards_zero(name, data):
    small = {"min_value": 0 if name.startswith("u") else -5, "max_value": 5}
    parts = data.draw(arrays_of(np.dtype(name), **small))
    prescale, postscale = data.draw(st.tuples(*[st.sampled_from([1.0, 0.5, 2.0, 1.5, 0.3])] * 2))
    scaled = [[int(int(element) * prescale) for element in part] for part in parts]
    sums = [sum(column) for column in zip(*scaled, strict=True)]
    assert combine(parts, name, Sum, prescale, postscale).tolist() == [int(total * postscale) for total in sums]


# Booleans -------------------------------------------------------------------------------------------------------------


@given(arrays_of(np.dtype(np.bool_)), st.sampled_from(OPS), st.sampled_from([1.0, 0.5]))
def test_booleans_are_or_and_and(parts, op, scale):
    ufunc = np.logical_and if op in (Min, Product) else np.logical_or
    same(combine(parts, "bool", op, scale, scale), fold(parts, ufunc))


# Floats ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATS + COMPLEX)
@given(st.data())
def test_floats_are_combined_in_rank_order_to_the_bit(name, data):
    parts = data.draw(arrays_of(np.dtype(name)))
    op = data.draw(st.sampled_from([Sum] if name in COMPLEX else [Sum, Min, Max, Product]))
    same(combine(parts, name, op), fold(parts, UFUNCS[op]))


@pytest.mark.parametrize("name", COMPLEX)
@given(st.data())
def test_complex_products_are_as_exact_as_their_type(name, data):
    """Not to the bit: numpy itself multiplies with or without fused instructions, as the arrays happen to lie."""
    parts = data.draw(arrays_of(np.dtype(name), max_magnitude=1e3, allow_nan=False))
    error = np.abs(combine(parts, name, Product) - fold(parts, np.multiply))
    magnitude = fold([np.abs(part) for part in parts], np.multiply)
    assert (error <= 4 * len(parts) * np.finfo(name).eps * magnitude + np.finfo(name).tiny).all()


@pytest.mark.parametrize("name", FLOATS + COMPLEX)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_a_float_average_is_as_exact_as_its_type(name, size):
    generator = np.random.default_rng(size)
    parts = [generator.normal(size=1000).astype(name) for _ in range(size)]
    exact = fold(parts, np.add) / np.dtype(name).type(size)
    error = np.abs(combine(parts, name, Average) - exact) / np.abs(exact)
    assert error.max() <= 2 * np.finfo(name).eps


@pytest.mark.parametrize("name", FLOATS + COMPLEX)
def test_floats_are_scaled_before_and_after(name):
    parts = [np.array([1.0, -3.0, 0.0], name), np.array([2.0, 5.0, -0.0], name)]
    assert combine(parts, name, Sum, 0.5, 4.0).tolist() == [6.0, 4.0, 0.0]
    assert combine(parts, name, Product, 2.0, 0.25).tolist() == [2.0, -15.0, 0.0]
    assert combine(parts, name, Average, 2.0, 0.5).tolist() == [1.5, 1.0, 0.0]


def test_a_negative_scale_turns_the_least_into_the_greatest():
    parts = [np.array([1.0, -3.0]), np.array([2.0, 5.0])]
    assert combine(parts, "float64", Max, -1.0, -1.0).tolist() == [1.0, -3.0]


def test_nan_spreads_through_every_operator():
    parts = [np.array([np.nan, 1.0]), np.array([1.0, np.nan])]
    for op in OPS:
        assert np.isnan(combine(parts, "float64", op)).all()


def test_infinities_and_overflow_are_results_like_others():
    inf = np.inf
    parts = [np.array([inf, inf, 3e38, -inf], np.float32), np.array([1.0, -inf, 3e38, -inf], np.float32)]
    same(combine(parts, "float32", Sum), np.array([inf, np.nan, inf, -inf], np.float32))


# Half precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HALVES)
@given(st.data())
def test_half_precision_is_combined_in_single_and_rounded_once(name, data):
    """Any bits: subnormal numbers, infinities, NaN."""
    patterns = data.draw(arrays_of(np.dtype(np.uint16)))
    op = data.draw(st.sampled_from(OPS))
    storage = ELEMENT_TYPES[name].storage
    result = combine([pattern.view(storage) for pattern in patterns], name, op).view(HALVES[name]).astype(np.float32)
    wide = [pattern.view(HALVES[name]).astype(np.float32) for pattern in patterns]
    total = fold(wide, UFUNCS[op])
    if op is Average and len(wide) > 1:
        total = total * np.float32(1 / len(wide))
    same(result, total.astype(HALVES[name]).astype(np.float32))


@pytest.mark.parametrize("name", HALVES)
def test_a_half_precision_sum_does_not_lose_what_single_precision_keeps(name):
    ones = np.ones(1, HALVES[name]).view(ELEMENT_TYPES[name].storage)
    size = 4096  # where float16 and bfloat16 have long stopped counting by one
    assert float(combine([ones] * size, name, Sum).view(HALVES[name])[0]) == size


@pytest.mark.parametrize(
    ("name", "largest"), [("float16", 65504.0), (BFLOAT16, float(ml_dtypes.finfo("bfloat16").max))]
)
def test_an_average_of_the_largest_numbers_does_not_overflow_on_the_way(name, largest):
    part = np.array([largest, -largest]).astype(HALVES[name]).view(ELEMENT_TYPES[name].storage)
    expected = [largest, -largest] if name == "float16" else [np.inf, -np.inf]  # bfloat16 reaches as far as float32
    assert combine([part, part], name, Average).view(HALVES[name]).astype(np.float64).tolist() == expected
    assert np.isinf(combine([part, part], name, Sum).view(HALVES[name]).astype(np.float32)).all()


# Large ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "int16", "float16", BFLOAT16, "bool", "complex128"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("more", one_in_gate(-1, 0, 1, 12345, chosen=3))
def test_it_makes_no_difference_where_the_chunks_are_cut(name, size, more):
    element = ELEMENT_TYPES[name]
    count = 2 * CHUNK // element.accumulator.itemsize + more
    generator = np.random.default_rng(1)
    raw = [generator.integers(0, 2 if name == "bool" else 1000, count).astype(np.uint16) for _ in range(size)]
    parts = [part.view(element.storage) if element.is_converted else part.astype(element.storage) for part in raw]
    whole = combine(parts, name, Average)
    cut = count // 3
    pieces = [combine([part[piece] for part in parts], name, Average) for piece in (slice(cut), slice(cut, None))]
    assert values(whole) == values(np.concatenate(pieces))


def test_nothing_is_reduced_to_nothing():
    for name in ELEMENT_TYPES:
        assert combine([np.empty(0, ELEMENT_TYPES[name].storage)] * 3, name, Sum).size == 0


# Which ----------------------------------------------------------------------------------------------------------------


def test_a_world_of_one_needs_no_arithmetic_unless_it_scales():
    element = ELEMENT_TYPES["float32"]
    assert Reduction(element, Average, 1, 1.0, 1.0).is_identity
    assert not Reduction(element, Sum, 1, 0.5, 1.0).is_identity
    assert not Reduction(element, Sum, 1, 1.0, 2.0).is_identity
    assert not Reduction(element, Sum, 2, 1.0, 1.0).is_identity


def test_a_reduction_is_made_once():
    assert reduction("float32", Sum, 2, 1.0, 1.0) is reduction("float32", Sum, 2, 1.0, 1.0)
    assert reduction("float32", Sum, 2, 1.0, 1.0) is not reduction("float32", Sum, 3, 1.0, 1.0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_all_operators_have_a_meaning_but_an_order_of_complex_numbers(op, name):
    if name in COMPLEX and op in (Min, Max):
        with pytest.raises(UsageError, match=f"^op={op} has no meaning for {name}, which is not ordered"):
            check_op(op, name)
    else:
        check_op(op, name)


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_adasum_is_for_real_floating_point_types(name):
    if name in COMPLEX or ELEMENT_TYPES[name].accumulator.kind != "f":
        with pytest.raises(UsageError, match=f"^op=adasum is for gradients, and {name} is no real floating-point type"):
            check_op(ReduceOp.ADASUM, name)
    else:
        check_op(ReduceOp.ADASUM, name)


@pytest.mark.parametrize("op", ["sum", None, 1, True, np.add])
def test_what_is_no_operator_is_refused_with_the_ones_there_are(op):
    with pytest.raises(UsageError, match=r"is not a reduce op: use one of distrun.Average, distrun.Sum, distrun.Min, "):
        check_op(op, "float32")


def test_operators_are_written_small():
    assert [str(op) for op in OPS] == ["average", "sum", "min", "max", "product"]


def test_integer_averages_are_exact_where_doubles_are_not():
    large = np.array([2**63 - 1, -(2**63), 2**53 + 1], np.int64)
    zero = np.zeros(3, np.int64)
    expected = [int(Fraction(int(element), 2)) for element in large]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert combine([large, zero], "int64", Average).tolist() == expected
