"""The kernels that quantise, on a real GPU, against the host's quantisation."""

from __future__ import annotations

import numpy as np
import pytest

from distrun.runtime.backends.quantisation import BLOCK, QUANTISERS
from distrun.runtime.gpu.quantised.kernels import Kernels
from distrun.tensor_fusion.device_quantisation import SOURCES, Addend, Source


def numbers(count, seed):
    """Return numbers of all sizes, those below the normal ones among them."""
    random = np.random.default_rng(seed)
    powers = 10.0 ** random.integers(-44, 30, -(-count // BLOCK))
    return (random.standard_normal(count) * np.repeat(powers, BLOCK)[:count]).astype(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("wire", QUANTISERS)
@pytest.mark.parametrize("factor", [1.0, 1 / 3])
def test_gradients_are_packed_and_quantised_as_on_the_host(driver, wire, factor):
    cupy, quantiser = driver.cupy, QUANTISERS[wire]()
    parts = [numbers(count, count) for count in [*range(1, 1500, 13), 300_001]]
    values, lost = np.concatenate(parts) * np.float32(factor), numbers(sum(part.size for part in parts), 1)
    expected, now = np.zeros(quantiser.nbytes(values.size), np.uint8), np.empty_like(values)
    quantiser.quantise(values, expected, (lost, now))
    given, before, after = [cupy.asarray(part) for part in parts], cupy.asarray(lost), cupy.asarray(lost)
    raw, stream = cupy.asarray(np.zeros_like(expected)), driver.new_stream()
    cupy.cuda.runtime.deviceSynchronize()
    sources = [Source(part.data.ptr, part.size) for part in given]
    Kernels(driver).quantise(wire, sources, raw.data.ptr, factor, (before.data.ptr, after.data.ptr), stream.ptr)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(raw), expected)
    np.testing.assert_array_equal(cupy.asnumpy(after), now)


@pytest.mark.gpu
@pytest.mark.parametrize("wire", QUANTISERS)
@pytest.mark.parametrize("number", [1, 3, SOURCES + 5])
def test_sums_are_those_of_the_host_in_its_order(driver, wire, number):
    cupy, quantiser, count, expected, arrays = driver.cupy, QUANTISERS[wire](), 10_007, None, []
    for place in range(number):
        values = restored = numbers(count, place)
        if place % 3 == 0:
            values, restored = np.zeros(quantiser.nbytes(count), np.uint8), np.empty(count, np.float32)
            quantiser.quantise(numbers(count, place), values)
            quantiser.restore(values, restored)
        arrays.append((cupy.asarray(values), place % 3 != 0))
        expected = restored if expected is None else expected + restored
    out, stream = cupy.asarray(np.zeros(count, np.float32)), driver.new_stream()
    cupy.cuda.runtime.deviceSynchronize()
    addends = [Addend(array.data.ptr, is_plain) for array, is_plain in arrays]
    Kernels(driver).add_up(wire, addends, count, out.data.ptr, 1 / number, stream.ptr)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), expected * np.float32(1 / number))


@pytest.mark.gpu
@pytest.mark.parametrize("wire", QUANTISERS)
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_a_block_that_is_not_finite_comes_back_without_finite_numbers(driver, wire, odd):
    cupy, values = driver.cupy, np.ones(3 * BLOCK, np.float32)
    values[BLOCK + 9] = odd
    given, raw = cupy.asarray(values), cupy.asarray(np.zeros(QUANTISERS[wire]().nbytes(values.size), np.uint8))
    out, stream, kernels = cupy.asarray(values), driver.new_stream(), Kernels(driver)
    cupy.cuda.runtime.deviceSynchronize()
    sources = [Source(given.data.ptr, values.size)]
    kernels.quantise(wire, sources, raw.data.ptr, 1.0, (0, 0), stream.ptr)
    kernels.add_up(wire, [Addend(raw.data.ptr)], values.size, out.data.ptr, 1.0, stream.ptr)
    stream.synchronize()
    found = cupy.asnumpy(out)
    assert not np.isfinite(found[BLOCK : 2 * BLOCK]).any()
    assert (found[:BLOCK] == 1).all()
