"""The plan of buckets: a pure function of sizes and order."""

from __future__ import annotations

from hypothesis import given, strategies as st

from distrun.tensor_fusion.buckets import GradientInfo, equal_groups, expected_order, plan_buckets, plan_grouped_buckets

MB = 1 << 20


def items(*sizes: int, kind: str = "float32") -> list[GradientInfo]:
    return [GradientInfo(size, kind) for size in sizes]


def test_gradients_are_expected_from_the_last_parameter_to_the_first():
    assert expected_order(4) == [3, 2, 1, 0]


def test_what_arrived_before_is_expected_in_that_order_and_the_rest_after_it():
    assert expected_order(5, [1, 4, 1]) == [1, 4, 3, 2, 0]


def test_the_first_bucket_is_small_and_the_others_hold_up_to_the_threshold():
    sizes = items(*[MB] * 8)
    assert plan_buckets(sizes, range(8), threshold=3 * MB, first=MB) == [[0], [1, 2, 3], [4, 5, 6], [7]]


def test_groups_are_buckets_of_their_own_and_the_rest_is_planned_as_usual():
    assert plan_grouped_buckets(items(1, 1, 1, 1, 1), [[4, 0], [2]], [4, 3, 2, 1, 0]) == [[2], [3, 1], [4, 0]]


def test_groups_are_divided_by_dtype():
    mixed = [GradientInfo(1, "float32"), GradientInfo(1, "float16"), GradientInfo(1, "float32")]
    assert plan_grouped_buckets(mixed, [[0, 1, 2]], [0, 1, 2]) == [[1], [0, 2]]


def test_equal_groups_are_consecutive_and_never_empty():
    assert equal_groups(7, 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert equal_groups(2, 5) == [[0], [1]]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["a", "b"])), max_size=40),
    st.integers(1, 100),
    st.integers(1, 100),
    st.randoms(use_true_random=False),
)
def test_every_parameter_is_in_one_bucket_of_its_dtype_within_the_threshold(shapes, threshold, first, random):
    sizes = [GradientInfo(nbytes, kind) for nbytes, kind in shapes]
    order = list(range(len(sizes)))
    random.shuffle(order)
    buckets = plan_buckets(sizes, order, threshold, first)
    assert sorted(place for bucket in buckets for place in bucket) == sorted(order)
    when = {place: index for index, place in enumerate(order)}
    assert [max(when[place] for place in bucket) for bucket in buckets] == sorted(
        max(when[place] for place in bucket) for bucket in buckets
    )
    for bucket in buckets:
        assert bucket == sorted(bucket, key=when.__getitem__)
        assert len({sizes[place].kind for place in bucket}) == 1
        assert len(bucket) == 1 or sum(sizes[place].nbytes for place in bucket) <= threshold
