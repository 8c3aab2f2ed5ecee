"""Which gradients go into which call: every one exactly once, small ones together, in the order in which they will be
there."""

from hypothesis import given, strategies as st

from distrun.tensor_fusion.buckets import GradientInfo
from distrun.tensor_fusion.graph_calls import CONCATENATED_UP_TO, GraphCall, plan_calls

ITEMS = st.lists(
    st.none()
    | st.builds(GradientInfo, st.integers(0, 3 * CONCATENATED_UP_TO), st.sampled_from(["float32", "float16"])),
    max_size=30,
)


def places_of(call):
    return [*call.alone, *[place for group in call.joined for place in group]]


@given(ITEMS, st.none() | st.integers(1, 10 * CONCATENATED_UP_TO))
def test_every_gradient_is_in_one_call_only_small_ones_of_one_kind_are_joined_and_buckets_keep_to_the_threshold(
    items, threshold
):
    calls = plan_calls(items, threshold)
    assert sorted(place for call in calls for place in places_of(call)) == list(range(len(items)))
    for call in calls:
        for group in call.joined:
            assert len(group) > 1
            assert len({items[place].kind for place in group}) == 1
            assert all(items[place].nbytes <= CONCATENATED_UP_TO for place in group)
        sizes = [items[place].nbytes for place in places_of(call) if items[place] is not None and items[place].nbytes]
        assert threshold is None or sum(sizes) <= threshold or len(sizes) == 1


def test_without_a_threshold_there_is_one_call():
    items = [
        GradientInfo(10, "a"),
        GradientInfo(CONCATENATED_UP_TO + 1, "a"),
        GradientInfo(10, "b"),
        GradientInfo(20, "a"),
        None,
    ]
    assert plan_calls(items) == [GraphCall(alone=(1, 2, 4), joined=((0, 3),))]
