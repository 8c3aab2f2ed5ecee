"""Packing equals concatenation, unpacking equals cutting."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from distrun.tensor_fusion.batching import FUSED_BELOW
from distrun.tensor_fusion.packing import pack, small_as_one, unpack

DTYPES = ["bool", "int8", "uint16", "float16", "float32", "float64", "longdouble", "complex64"]
lengths = st.lists(st.integers(0, 50), min_size=1, max_size=12)


def arrays(sizes: list[int], dtype: str, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 100, size).astype(dtype) for size in sizes]


@given(lengths, st.sampled_from(DTYPES), st.integers(0, 1000))
def test_the_buffer_holds_the_parts_one_after_the_other_and_they_come_out_as_they_went_in(sizes, dtype, seed):
    parts = arrays(sizes, dtype, seed)
    buffer = np.empty(sum(sizes), dtype)
    pack(parts, buffer)
    assert buffer.tolist() == np.concatenate(parts).tolist()
    out = [np.empty_like(part) for part in parts]
    unpack(buffer, out)
    for part, received in zip(parts, out, strict=True):
        assert part.tolist() == received.tolist()


@given(lengths, lengths, st.integers(0, 1000))
def test_what_was_cut_in_one_way_may_be_put_together_in_another(sizes, others, seed):
    total = sum(sizes)
    buffer = np.arange(total)
    cuts = sorted({min(total, cut) for cut in np.cumsum(others).tolist()} | {0, total})
    out = [np.empty(stop - start, int) for start, stop in itertools.pairwise(cuts)]
    unpack(buffer, out)
    again = np.empty(total, int)
    pack(out, again) if out else None
    assert not out or again.tolist() == buffer.tolist()


def test_a_buffer_of_another_length_is_not_filled():
    with pytest.raises(ValueError, match=r"."):
        pack([np.ones(2), np.ones(2)], np.empty(3))


@given(st.lists(st.sampled_from([0, 1, 30, FUSED_BELOW - 1, FUSED_BELOW, FUSED_BELOW + 5]), max_size=6))
def test_what_is_broadcast_with_the_small_ones_packed_arrives_in_place(sizes):
    given_flats = arrays(sizes, "uint8")
    taken = [np.zeros_like(flat) for flat in given_flats]
    plans = [
        small_as_one(flats, is_root, lambda size: np.zeros(size, np.uint8), np.concatenate)
        for flats, is_root in ((given_flats, True), (taken, False))
    ]
    (sent, finish_root), (received, finish) = plans
    assert sum(flat.nbytes < FUSED_BELOW for flat in sent) <= 1
    for flat, room in zip(sent, received, strict=True):
        room[:] = flat
    finish_root()
    finish()
    assert all(map(np.array_equal, taken, given_flats))
