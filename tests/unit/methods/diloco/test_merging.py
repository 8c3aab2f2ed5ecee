"""Which anchors all ranks take when they merge."""

import pytest

from distrun.methods.diloco.merging import MergeState, Plan, plan


def standing(step=9, versions=(1, 1), has_anchor=True, has_moved=True):
    return MergeState(step, has_anchor, has_moved, versions)


NEWCOMER = standing(0, (0, 0), has_anchor=False, has_moved=False)


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([NEWCOMER, NEWCOMER], None),  # before the first step there is nothing to merge
        ([standing(), standing()], Plan(leader=0, step=9, sends=False, movers=2)),
        ([standing(), standing(9, (2, 1))], Plan(leader=1, step=9, sends=True, movers=2)),
        ([standing(7), standing(8)], Plan(leader=1, step=8, sends=False, movers=2)),
        ([standing(9, (1, 2)), standing(12)], Plan(leader=0, step=12, sends=True, movers=2)),
        ([NEWCOMER, standing(), standing()], Plan(leader=1, step=9, sends=True, movers=2)),  # newcomers do not count
        ([standing(has_moved=False)] * 2, Plan(leader=0, step=9, sends=False, movers=0)),  # they have been resumed
    ],
)
def test_all_take_the_anchors_with_the_most_averages_and_the_step_of_the_furthest(standings, expected):
    assert plan(standings) == expected
