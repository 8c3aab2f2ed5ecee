"""Quantised blocks: every value comes back within half a scale, whatever the length."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from distrun.runtime.backends.quantisation import AT_ONCE, BLOCK, Quantiser
from distrun.runtime.settings import WIRE_SHARES

BITS = {"int8": 8, "int4": 4}
floats = st.floats(-(2.0**100), 2.0**100, width=32)
sizes = st.one_of(
    st.integers(1, 3 * BLOCK), st.sampled_from([AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE + BLOCK + 3])
)


def there_and_back(values, bits):
    quantiser = Quantiser(bits)
    raw = np.empty(quantiser.nbytes(values.size), np.uint8)
    quantiser.quantise(values, raw)
    out = np.full(values.size, 7, values.dtype)
    quantiser.restore(raw, out)
    return out


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=100, deadline=None)
@given(values=arrays.arrays(np.float32, sizes, elements=floats, fill=st.floats(-1, 1, width=32)))
@example(values=np.zeros(5, np.float32))
@example(values=np.array([1e-45, 0, -1e-40], np.float32))
def test_each_value_comes_back_within_half_a_scale(bits, dtype, values):
    values = values.astype(dtype)
    error = np.abs(there_and_back(values, bits).astype(np.float64) - values)
    for start in range(0, values.size, BLOCK):
        scale = np.abs(values[start : start + BLOCK]).max() / (2 ** (bits - 1) - 1)
        assert (error[start : start + BLOCK] <= max(0.50001 * scale, 2.0**-125 * 127)).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_of_the_range_and_the_largest_values_are_exact(bits):
    most = 2 ** (bits - 1) - 1
    values = np.resize(np.arange(-most, most + 1), 3 * BLOCK + 5).astype(np.float32)
    values[-1] = most
    np.testing.assert_array_equal(there_and_back(values, bits), values)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_a_block_with_what_is_not_finite_has_nothing_finite_left_and_others_are_as_before(bits, odd):
    values = np.ones(3 * BLOCK + 1, np.float32)
    values[BLOCK + 9] = odd
    result = there_and_back(values, bits)
    assert not np.isfinite(result[BLOCK : 2 * BLOCK]).any()
    np.testing.assert_array_equal(np.delete(result, range(BLOCK, 2 * BLOCK)), 1)


@pytest.mark.parametrize("dtype", BITS)
def test_the_share_of_bytes_is_what_settings_say(dtype):
    assert Quantiser(BITS[dtype]).nbytes(1 << 20) == WIRE_SHARES[dtype] * 4 * (1 << 20)
