"""Which operations travel together: the same answer on every rank, and nothing lost or out of bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from distrun.tensor_fusion.batching import DEFAULT_THRESHOLD, fuse

Operation = tuple[int, str | None, int]  # place, key, bytes

operations = st.lists(st.tuples(st.sampled_from(["f4", "f2", "i8", None]), st.integers(0, 40))).map(
    lambda pairs: [(place, key, nbytes) for place, (key, nbytes) in enumerate(pairs)]
)


def fused(found: list[Operation], threshold: int) -> list[list[Operation]]:
    return fuse(found, lambda operation: operation[1], lambda operation: operation[2], threshold)


def places(batches: list[list[Operation]]) -> list[list[int]]:
    return [[place for place, _, _ in batch] for batch in batches]


@pytest.mark.parametrize(
    ("keys", "nbytes", "threshold", "expected"),
    [
        (["f4", "f2", "f4", "f2"], [5] * 4, 100, [[0, 2], [1, 3]]),
        (["f4", None, None, "f4"], [5] * 4, 100, [[0, 3], [1], [2]]),
        (["f4"] * 5, [40] * 5, 80, [[0, 1], [2, 3], [4]]),
        (["f4"] * 5, [40] * 5, 79, [[0], [1], [2], [3], [4]]),
        (["f4"] * 3, [5, 500, 5], 100, [[0], [1], [2]]),
        (["f4"] * 3, [4] * 3, 0, [[0], [1], [2]]),
    ],
    ids=["of one key", "without a key", "full at the threshold", "above it", "one larger than it", "nothing fits"],
)
def test_operations_of_one_key_travel_together_up_to_the_threshold(keys, nbytes, threshold, expected):
    assert places(fused(list(zip(range(9), keys, nbytes, strict=False)), threshold)) == expected


def test_the_threshold_is_64_mebibytes_unless_said_otherwise():
    assert DEFAULT_THRESHOLD == 64 << 20
    assert fuse([1, 2], lambda _: "k", lambda _: 32 << 20) == [[1, 2]]
    assert fuse([1, 2], lambda _: "k", lambda _: (32 << 20) + 1) == [[1], [2]]


@given(operations, st.integers(0, 100))
def test_every_operation_travels_exactly_once_and_in_bounds(found, threshold):
    batches = fused(found, threshold)
    assert sorted(place for batch in places(batches) for place in batch) == list(range(len(found)))
    for batch in batches:
        assert len({key for _, key, _ in batch}) == 1
        assert len(batch) == 1 or (batch[0][1] is not None and sum(nbytes for _, _, nbytes in batch) <= threshold)


@given(operations, st.integers(0, 100))
def test_order_is_kept_within_a_batch_and_among_first_members(found, threshold):
    batches = places(fused(found, threshold))
    assert all(batch == sorted(batch) for batch in batches)
    assert [batch[0] for batch in batches] == sorted(batch[0] for batch in batches)
