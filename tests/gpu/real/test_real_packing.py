"""The packer on a real GPU, against numpy."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from distrun.runtime.gpu.packing import Packer
from distrun.tensor_fusion.device_packing import Piece

FLOATS = ("float16", "bfloat16", "float32", "float64")


def on_gpu(driver, array):
    return driver.cupy.asarray(array.view(f"u{array.itemsize}"))


def of_type(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def numbers(name, count, seed=1):
    random = np.random.default_rng(seed)
    drawn = random.normal(size=count) * 10.0 ** random.integers(-9, 9, count)
    with np.errstate(over="ignore"):
        drawn = drawn.astype(of_type(name))
    drawn[::97], drawn[1::97] = np.nan, -np.inf
    return drawn


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "target"), [(source, target) for source in FLOATS for target in FLOATS])
def test_numbers_come_out_as_numpy_makes_them(driver, source, target):
    given = numbers(source, 100_003)
    if (source, target) == ("float64", "bfloat16"):
        given = given.astype(np.float32).astype(np.float64)  # ml_dtypes rounds twice, by way of float32
    number = np.float64 if "float64" in (source, target) else np.float32
    packer, stream, taken = Packer(driver), driver.new_stream(), on_gpu(driver, given)
    for factor, place in itertools.product((1.0, 0.25), (0, 1, 8)):
        made = on_gpu(driver, np.zeros(given.size, of_type(target)))
        driver.cupy.cuda.runtime.deviceSynchronize()
        piece = Piece(taken.data.ptr + place * given.itemsize, made.data.ptr + 8 * made.itemsize, given.size - 8)
        packer.copy([piece], source, target, factor, stream.ptr)
        stream.synchronize()
        found = driver.cupy.asnumpy(made).view(of_type(target))
        with np.errstate(over="ignore", invalid="ignore"):
            expected = (given[place:][: given.size - 8].astype(number) * number(factor)).astype(of_type(target))
            np.testing.assert_array_equal(found[8:].astype(np.float64), expected.astype(np.float64))
        assert not found[:8].any()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["int8", "float16", "float32", "int64"])
def test_arrays_get_into_a_buffer_and_out_again_in_a_graph(driver, name):
    random = np.random.default_rng(2)
    parts = [random.integers(0, 100, size).astype(name) for size in [*random.integers(0, 3000, 200), 1_000_001]]
    buffer = np.zeros(sum(part.size for part in parts), name)
    given, filled = [on_gpu(driver, part) for part in parts], on_gpu(driver, buffer)
    emptied = [on_gpu(driver, np.zeros_like(part)) for part in parts]
    places = (np.cumsum([0, *[part.size for part in parts[:-1]]]) * buffer.itemsize + filled.data.ptr).tolist()
    pieces = [Piece(part.data.ptr, place, part.size) for part, place in zip(given, places, strict=True)]
    back = [Piece(place, part.data.ptr, part.size) for part, place in zip(emptied, places, strict=True)]
    packer, stream = Packer(driver), driver.new_stream()
    packer.copy([Piece(0, filled.data.ptr, buffer.size)], name, name, 1.0, stream.ptr)  # compiled before it is recorded
    with stream:
        stream.begin_capture()
        packer.copy(pieces, name, name, 1.0, stream.ptr)
        packer.copy(back, name, name, 1.0, stream.ptr)
        graph = stream.end_capture()
    driver.cupy.cuda.runtime.deviceSynchronize()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(driver.cupy.asnumpy(filled).view(name), np.concatenate(parts))
    for part, expected in zip(emptied, parts, strict=True):
        np.testing.assert_array_equal(driver.cupy.asnumpy(part).view(name), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_scaling_where_it_lies(driver, name):
    given = numbers(name, 50_001)
    array = on_gpu(driver, given)
    stream = driver.new_stream()
    driver.cupy.cuda.runtime.deviceSynchronize()
    piece = Piece(array.data.ptr, array.data.ptr, given.size)
    Packer(driver).copy([piece], name, name, 0.5, stream.ptr)
    stream.synchronize()
    np.testing.assert_array_equal(driver.cupy.asnumpy(array).view(name), given * given.dtype.type(0.5))
