"""Which ends of ranks the agents of a job hear of."""

from __future__ import annotations

from distrun.runner.job.departures import Departures
from distrun.runner.protocol.exits import RankExit
from distrun.runner.supervision.events import RankExited

GONE = RankExit(0, has_departed=True)


def test_ranks_that_end_without_init_are_told_together_after_a_moment():
    frames = []
    made = Departures(frames.append, True)
    made.note(RankExited(3, RankExit(0)), 10.0)
    made.note(RankExited(4, RankExit(1)), 10.0)
    assert made.due == float("inf")
    made.note(RankExited(1, GONE), 10.0)
    made.note(RankExited(5, GONE), 10.3)
    made.tell(10.4)
    assert (made.due, frames) == (10.5, [])
    made.tell(10.5)
    assert [frame.payload for frame in frames] == [b"1 5"]
    made.tell(99.0)
    assert len(frames) == 1


def test_on_one_host_nobody_else_has_to_be_told():
    made = Departures([].append, False)
    made.note(RankExited(1, GONE), 10.0)
    assert made.due == float("inf")
