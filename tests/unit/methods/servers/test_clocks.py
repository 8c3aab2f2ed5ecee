"""Waiting for workers that are behind, by the numbers of steps."""

from distrun.methods.servers.clocks import LEFT, are_complete, needed, slowest


def test_staleness_is_how_many_steps_of_others_may_be_missing():
    assert [needed(step, 2) for step in range(5)] == [0, 0, 0, 1, 2]
    assert needed(7, 0) == 7
    assert needed(7, float("inf")) == 0


def test_who_has_left_is_waited_for_by_nobody():
    assert slowest([4, LEFT, 3]) == 3
    assert slowest([LEFT, LEFT]) == LEFT
    assert are_complete([5, LEFT, 5], frozenset({0, 2}))
    assert not are_complete([5, 5, 5], frozenset({0, 2}))
    assert not are_complete([LEFT, LEFT], frozenset())
