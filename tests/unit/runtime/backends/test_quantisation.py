"""Quantised blocks: every value comes back within the bounds of its form, whatever the length."""

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from hypothesis.extra import numpy as arrays
from session.hypothesis_profiles import examples

from distrun.contract.settings import WIRE_SHARES
from distrun.runtime.backends.quantisation import AT_ONCE, BLOCK, LEAST_SCALE, QUANTISERS

floats = st.floats(-(2.0**100), 2.0**100, width=32)
sizes = st.one_of(
    st.integers(1, 3 * BLOCK), st.sampled_from([AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE + BLOCK + 3])
)


def there_and_back(values, wire):
    quantiser = QUANTISERS[wire]()
    raw = np.empty(quantiser.nbytes(values.size), np.uint8)
    quantiser.quantise(values, raw)
    out = np.full(values.size, 7, values.dtype)
    quantiser.restore(raw, out)
    return out


@pytest.mark.parametrize("wire", QUANTISERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@examples(gate=10, full=100)
@given(values=arrays.arrays(np.float32, sizes, elements=floats, fill=st.floats(-1, 1, width=32)))
@example(values=np.zeros(5, np.float32))
@example(values=np.array([1e-45, 0, -1e-40], np.float32))
@example(values=np.float32([1, -0.7777778, 0.7777777, -0.38888889, 0.01215278, -0.01215277]))
def test_each_value_comes_back_within_half_a_scale_or_5_14ths_of_itself(wire, dtype, values):
    values = values.astype(dtype)
    error = np.abs(there_and_back(values, wire).astype(np.float64) - values)
    for start in range(0, values.size, BLOCK):
        block = np.abs(values[start : start + BLOCK])
        bounds = block.max() / 254 if wire == "int8" else np.maximum(block * 5 / 14, block.max() * 7 / 9 / 64)
        assert (error[start : start + BLOCK] <= np.maximum(1.00001 * bounds, LEAST_SCALE * 127)).all()


def test_integers_of_the_range_and_the_largest_values_are_exact():
    values = np.resize(np.arange(-127, 128), 3 * BLOCK + 5).astype(np.float32)
    values[-1] = 127
    np.testing.assert_array_equal(there_and_back(values, "int8"), values)


@given(largest=st.floats(float(LEAST_SCALE), 2.0**127, width=32), count=st.integers(15, 3 * BLOCK))
def test_the_largest_value_and_halves_of_it_are_exact_down_to_a_64th(largest, count):
    levels = np.exp2(-np.arange(7, dtype=np.float32))
    values = np.resize(np.concatenate([[0], levels, -levels]), count).astype(np.float32) * np.float32(largest)
    values[::BLOCK] = largest
    np.testing.assert_array_equal(there_and_back(values, "int4"), values)


def test_squares_of_values_that_are_equally_spread_keep_their_mean_in_powers_of_two():
    for power in range(6):
        values = np.linspace(2.0 ** (-power - 1), 2.0**-power, 100 * BLOCK, dtype=np.float32)
        values[::BLOCK] = 1  # the scale of all blocks
        assert np.square(there_and_back(values, "int4")).mean() == pytest.approx(np.square(values).mean(), rel=1e-3)


@pytest.mark.parametrize("wire", QUANTISERS)
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_a_block_with_what_is_not_finite_has_nothing_finite_left_and_others_are_as_before(wire, odd):
    values = np.ones(3 * BLOCK + 1, np.float32)
    values[BLOCK + 9] = odd
    result = there_and_back(values, wire)
    assert not np.isfinite(result[BLOCK : 2 * BLOCK]).any()
    np.testing.assert_array_equal(np.delete(result, range(BLOCK, 2 * BLOCK)), 1)


@pytest.mark.parametrize("wire", QUANTISERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@examples(gate=10, full=100)
@given(values=arrays.arrays(np.float32, sizes, elements=floats, fill=st.floats(-1, 1, width=32)))
@example(values=np.ones(5, np.float32))
def test_who_quantises_is_told_what_others_make_of_it_and_what_is_lost(wire, dtype, values):
    own, before = values.astype(dtype), np.roll(values, 1)
    quantiser, now = QUANTISERS[wire](), np.empty_like(before)
    raw, others = np.empty(quantiser.nbytes(own.size), np.uint8), np.empty_like(own)
    quantiser.quantise(own, raw, (before, now), restored=own)
    quantiser.restore(raw, others)
    assert own.tobytes() == others.tobytes()
    np.testing.assert_array_equal(now, values + before - others.astype(np.float32))


@pytest.mark.parametrize("wire", QUANTISERS)
def test_the_share_of_bytes_is_what_settings_say(wire):
    assert QUANTISERS[wire]().nbytes(1 << 20) == WIRE_SHARES[wire] * 4 * (1 << 20)
