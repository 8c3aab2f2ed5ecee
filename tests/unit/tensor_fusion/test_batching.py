"""Which operations travel together: the same answer on every rank, and nothing lost or out of bounds."""

from __future__ import annotations

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


def test_operations_of_one_key_travel_together():
    found = [(0, "f4", 5), (1, "f2", 5), (2, "f4", 5), (3, "f2", 5)]
    assert places(fused(found, 100)) == [[0, 2], [1, 3]]


def test_an_operation_without_a_key_travels_alone_at_its_place():
    found = [(0, "f4", 5), (1, None, 5), (2, None, 5), (3, "f4", 5)]
    assert places(fused(found, 100)) == [[0, 3], [1], [2]]


def test_a_batch_is_full_at_the_threshold():
    found = [(place, "f4", 40) for place in range(5)]
    assert places(fused(found, 80)) == [[0, 1], [2, 3], [4]]
    assert places(fused(found, 79)) == [[0], [1], [2], [3], [4]]


def test_an_operation_above_the_threshold_travels_alone():
    found = [(0, "f4", 5), (1, "f4", 500), (2, "f4", 5)]
    assert places(fused(found, 100)) == [[0], [1], [2]]


def test_a_threshold_of_zero_fuses_nothing_that_has_bytes():
    found = [(0, "f4", 4), (1, "f4", 4), (2, "f4", 4)]
    assert places(fused(found, 0)) == [[0], [1], [2]]


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


@given(operations, st.integers(0, 100))
def test_every_rank_makes_the_same_plan_from_the_same_list(found, threshold):
    assert fused(found, threshold) == fused(list(found), threshold)
    doubled = [operation for operation in found for _ in range(2)]
    assert fused(doubled, threshold) == fused(iter(doubled), threshold)  # type: ignore[arg-type]  # any iterable
