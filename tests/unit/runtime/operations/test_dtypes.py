"""Element types: which there are, how they are named, and how the half-precision ones are converted."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from distrun.errors import UsageError
from distrun.runtime.operations.dtypes import BFLOAT16, ELEMENT_TYPES, name_of

HALVES = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)  # every pattern of 16 bits


@pytest.mark.parametrize("name", [name for name in ELEMENT_TYPES if name != BFLOAT16])
def test_a_numpy_dtype_is_known_by_its_name(name):
    assert name_of(np.dtype(name)) == name
    assert ELEMENT_TYPES[name].storage == np.dtype(name)


def test_all_numeric_and_boolean_dtypes_of_numpy_are_known():
    for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?":
        assert ELEMENT_TYPES[name_of(np.dtype(code))].storage == np.dtype(code)


def test_bfloat16_lies_in_memory_as_uint16():
    assert name_of(np.dtype(ml_dtypes.bfloat16)) == BFLOAT16
    assert ELEMENT_TYPES[BFLOAT16].storage == np.uint16
    assert name_of(np.dtype(np.uint16)) == "uint16"


def test_only_the_half_precision_types_are_converted():
    assert [name for name, element in ELEMENT_TYPES.items() if element.is_converted] == ["float16", BFLOAT16]
    assert all(element.accumulator == np.float32 for element in ELEMENT_TYPES.values() if element.is_converted)


@pytest.mark.parametrize(
    "dtype", ["U3", "S3", "O", "M8[s]", "m8[ns]", "i4,f4", "V5", ml_dtypes.float8_e4m3fn, ml_dtypes.int4]
)
def test_other_dtypes_are_refused_with_the_known_ones_and_a_way_out(dtype):
    with pytest.raises(UsageError, match=r"cannot travel as an array \(known: .*float32.*\): use broadcast_object"):
        name_of(np.dtype(dtype))


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">c16"])
def test_foreign_byte_order_is_refused_with_the_remedy(dtype):
    with pytest.raises(UsageError, match=r"is not in this machine's byte order: convert it with .astype\('"):
        name_of(np.dtype(dtype))


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), (BFLOAT16, ml_dtypes.bfloat16)])
def test_decoding_is_exact_for_every_value_there_is_and_encoding_undoes_it(name, dtype):
    element = ELEMENT_TYPES[name]
    wide, encoded = np.empty(HALVES.size, np.float32), np.empty(HALVES.size, element.storage)
    element.decode(HALVES.view(element.storage), wide)
    expected = HALVES.view(dtype).astype(np.float32)
    assert np.array_equal(wide, expected, equal_nan=True)
    assert np.array_equal(np.signbit(wide), np.signbit(expected))
    element.encode(wide, encoded)
    isnan = np.isnan(expected)
    assert np.array_equal(encoded.view(np.uint16)[~isnan], HALVES[~isnan])
    assert np.isnan(encoded.view(dtype)[isnan].astype(np.float32)).all()


def awkward() -> np.ndarray:
    """float32 around every value of bfloat16: on it, halfway to the next, and a bit to either side; overflow, NaN."""
    corners = np.arange(0, 1 << 32, 1 << 16, dtype=np.uint64)
    offsets = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint64)
    return (corners[:, None] + offsets).ravel().astype(np.uint32).view(np.float32)


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), (BFLOAT16, ml_dtypes.bfloat16)])
def test_encoding_rounds_to_nearest_even_overflows_to_infinity_and_keeps_nan(name, dtype):
    element = ELEMENT_TYPES[name]
    source = awkward()
    if name == "float16":  # the same values and those next to them, in float16's range
        source = np.concatenate([source, np.linspace(-70000, 70000, 100_001, dtype=np.float32)])
    before = source.view(np.uint32).copy()
    encoded = np.empty(source.size, element.storage)
    with np.errstate(all="ignore"):
        element.encode(source, encoded)
        expected = source.astype(dtype)
    isnan = np.isnan(source)
    assert np.array_equal(encoded.view(np.uint16)[~isnan], expected.view(np.uint16)[~isnan])
    assert np.isnan(encoded.view(dtype)[isnan].astype(np.float32)).all()
    assert np.array_equal(source.view(np.uint32), before)
