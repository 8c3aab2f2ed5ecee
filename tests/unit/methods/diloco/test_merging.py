"""Which anchors all ranks take when they merge."""

from distrun.methods.diloco.merging import MergeState, Plan, plan


def standing(step=9, versions=(1, 1), has_anchor=True, has_moved=True):
    return MergeState(step, has_anchor, has_moved, versions)


NEWCOMER = standing(0, (0, 0), has_anchor=False, has_moved=False)


def test_before_the_first_step_there_is_nothing_to_merge():
    assert plan([NEWCOMER, NEWCOMER]) is None


def test_ranks_with_the_same_anchors_send_none():
    assert plan([standing(), standing()]) == Plan(leader=0, step=9, sends=False, movers=2)


def test_whoever_has_used_more_averages_has_the_newest_anchors():
    assert plan([standing(), standing(9, (2, 1))]) == Plan(leader=1, step=9, sends=True, movers=2)


def test_all_are_at_the_step_of_the_furthest():
    assert plan([standing(7), standing(8)]) == Plan(leader=1, step=8, sends=False, movers=2)
    assert plan([standing(9, (1, 2)), standing(12)]) == Plan(leader=0, step=12, sends=True, movers=2)


def test_newcomers_take_the_anchors_and_count_for_nothing():
    assert plan([NEWCOMER, standing(), standing()]) == Plan(leader=1, step=9, sends=True, movers=2)
    resumed = standing(has_moved=False)
    assert plan([resumed, resumed]) == Plan(leader=0, step=9, sends=False, movers=0)
