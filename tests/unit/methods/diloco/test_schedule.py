"""When fragments are due, and when their averages are used."""

from hypothesis import given, strategies as st

from distrun.methods.diloco.fragments import MOST_DELAY, Schedule


def test_fragments_take_turns_at_equal_distances():
    schedule = Schedule(every=8, fragments=4)
    assert [schedule.due(step) for step in range(1, 10)] == [None, 0, None, 1, None, 2, None, 3, None]
    assert schedule.delay(0) == 2


def test_steps_of_the_warm_up_do_not_count():
    schedule = Schedule(every=2, fragments=1, warmup=3)
    assert [schedule.due(step) for step in range(8)] == [None, None, None, None, None, 0, None, 0]


@given(st.integers(1, 60).flatmap(lambda every: st.tuples(st.just(every), st.integers(1, every))), st.integers(0, 9))
def test_every_fragment_is_due_once_in_a_round_and_one_travels_at_a_time(sizes, warmup):
    every, fragments = sizes
    schedule = Schedule(every, fragments, warmup)
    until = 0
    turns = []
    for step in range(warmup + 3 * every + 1):
        due = schedule.due(step)
        if due is not None:
            assert step >= until
            until = step + schedule.delay(due)
            assert 1 <= schedule.delay(due) <= MOST_DELAY
            turns.append(due)
    assert turns == list(range(fragments)) * 3
