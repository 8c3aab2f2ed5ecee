"""Compressors, of distrun and of the user: here tensors are numpy arrays."""

import numpy as np
import pytest

from distrun.errors import UsageError
from distrun.runtime.collectives.compressors import Compression, compressed, wire_only, wire_type


class Negated:
    @staticmethod
    def compress(tensor):
        return -tensor, "context"

    @staticmethod
    def decompress(tensor, ctx):
        assert ctx == "context"
        return -tensor


class IndexedSlices:
    pass


def test_compressors_of_distrun_are_types_on_the_wire_and_not_called():
    assert wire_type(Compression.none) == ""
    assert wire_only(Compression.fp16) == "float16"
    assert wire_type(Compression.bf16) == "bfloat16"
    assert compressed(Compression.fp16, [1.0, None], list) == [1.0, None]


def test_a_compressor_of_the_users_is_called_where_that_is_offered():
    class Half(Compression.fp16):
        pass

    assert wire_type(Negated) == wire_type(Half) == ""
    assert compressed(Half, [np.ones(1)], lambda tensors: [tensors[0] + tensors[0].itemsize]) == [np.float64(3)]
    with pytest.raises(UsageError, match="choose one of these"):
        wire_only(Negated)


@pytest.mark.parametrize("nonsense", ["fp16", None, 16])
def test_what_is_no_compressor_is_refused_with_the_choice(nonsense):
    with pytest.raises(UsageError, match="has no methods compress and decompress: choose one of these, or give"):
        wire_type(nonsense)


def test_compressed_tensors_travel_and_missing_and_sparse_ones_as_they_are():
    seen, sparse = [], IndexedSlices()

    def reduce(tensors):
        seen.extend(tensors)
        return tensors

    assert compressed(Negated, [1.0, None, sparse], reduce) == [1.0, None, sparse]
    assert seen == [-1.0, None, sparse]


@pytest.mark.parametrize(("compressor", "itemsize"), [(Compression.fp16, 2), (Compression.bf16, 2)])
def test_compressors_of_distrun_can_be_called_by_hand(compressor, itemsize):
    compressed, context = compressor.compress(np.array([1.5, -2.0]))
    assert compressed.dtype.itemsize == itemsize
    back = compressor.decompress(compressed, context)
    assert back.dtype == np.float64
    assert back.tolist() == [1.5, -2.0]
    whole, context = compressor.compress(np.array([3]))
    assert whole.dtype == np.int64
    assert compressor.decompress(whole, context) is whole
