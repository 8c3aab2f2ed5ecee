"""Stalls are found, asked about, reported and given up at the right times, on a clock that the tests move by hand."""

from __future__ import annotations

import pytest

from distrun.errors import StallError
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.decisions import Fail
from distrun.runtime.negotiation.stalls import (
    ANSWER_TIME,
    COORDINATOR_GRACE,
    NEVER,
    CoordinatorStallMonitor,
    FollowerStallMonitor,
    warning_time,
)
from distrun.runtime.operations.request import Request
from distrun.runtime.operations.timeouts import Timeouts

A, B = (Request("allreduce", name, "float32", ((3,),)) for name in "ab")


class Coordinator:
    """A watch over a controller of three ranks, and what it has done."""

    def __init__(self, warning: float = 10.0, timeout: float = 0.0, causes: Causes | None = None) -> None:
        self.controller = Controller({0: range(3)})
        self.asked: list[int] = []
        self.watch = CoordinatorStallMonitor(
            self.controller, Timeouts(warning, timeout), "<{}>".format, self.asked.append, causes
        )

    def submit(self, now: float, *ranks: int, request: Request = A, site: str = "") -> None:
        for rank in ranks:
            self.controller.submit(rank, request, site, now)

    def answer(self, now: float, *ranks: int) -> None:
        for rank in ranks:
            self.watch.answered(rank, "  stack", now)


def test_ranks_that_wait_for_each_other_are_reported_together_with_the_remedy(caplog):
    one = Coordinator()
    one.submit(0.0, 0, 2, site="train.py:12")
    one.watch.look(10.0)
    one.answer(10.0, 1)
    assert "neither will come" not in caplog.messages[-1]
    one.controller.submit(1, B, "evaluate.py:7", 10.0)
    one.watch.look(30.0)
    one.answer(30.0, 0, 1, 2)
    assert (
        "ranks 0, 2 wait in allreduce 'a' (at train.py:12) for rank 1, which waits in allreduce 'b' (at evaluate.py:7) "
        "for ranks 0, 2: neither will come; where ranks have unequal numbers of steps, give each as many"
    ) in caplog.messages[-1]
    assert "distrun.join()" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("warning", "timeout", "expected"),
    [(60.0, 0.0, 60.0), (60.0, 20.0, 10.0), (5.0, 20.0, 5.0), (0.0, 20.0, 10.0), (0.0, 0.0, NEVER)],
)
def test_there_is_a_report_before_anything_is_given_up(warning, timeout, expected):
    assert warning_time(Timeouts(warning, timeout)) == Follower(warning, timeout).watch.next_look(0.0) == expected


# The coordinator ------------------------------------------------------------------------------------------------------


def test_the_coordinator_need_not_look_while_nothing_waits(caplog):
    one = Coordinator()
    assert one.watch.next_look(0.0) == NEVER
    one.watch.look(1000.0)
    assert not one.watch.is_busy
    assert one.asked == caplog.messages == []


def test_it_asks_the_missing_ranks_after_the_warning_time_and_reports_their_answers(caplog):
    one = Coordinator(warning=10.0)
    one.controller.submit(1, A, "train.py:3 in main", 100.0)
    assert one.watch.next_look(101.0) == 110.0
    one.watch.look(109.9)
    assert one.asked == []
    one.watch.look(110.0)
    assert one.asked == [0, 2]
    assert one.watch.is_busy
    one.watch.answered(2, '  File "data.py", line 7, in load', 110.1)
    assert caplog.messages == []
    one.watch.answered(0, '  File "train.py", line 1, in wait', 110.2)
    (report,) = caplog.messages
    assert report.splitlines() == [
        "allreduce 'a' has waited for 10.0 s: submitted by rank 1 (at train.py:3 in main), not by <0>, <2>",
        "the main thread of rank 0 is at",
        '  File "train.py", line 1, in wait',
        "the main thread of rank 2 is at",
        '  File "data.py", line 7, in load',
    ]


def test_a_rank_that_does_not_answer_is_not_waited_for_longer_than_the_answer_time(caplog):
    one = Coordinator(warning=10.0)
    one.submit(0.0, 0, 1)
    one.watch.look(10.0)
    assert one.asked == [2]
    assert one.watch.next_look(10.0) == 10.0 + ANSWER_TIME
    one.watch.look(10.0 + ANSWER_TIME)
    (report,) = caplog.messages
    assert report.splitlines() == [
        "allreduce 'a' has waited for 10.0 s: submitted by ranks 0-1, not by <2>",
        "<2> was asked where it is, and did not answer",
    ]


def test_reports_come_each_after_twice_the_time_of_the_one_before(caplog):
    one = Coordinator(warning=10.0)
    one.controller.submit(0, A, "", 0.0)
    times = []
    now = 0.0
    while now < 200.0:
        now = one.watch.next_look(now)
        before = len(caplog.messages)
        one.watch.look(now)
        if one.watch.next_look(now) == now + ANSWER_TIME:  # it has just asked
            times.append(now)
            one.answer(now, 1, 2)
        assert len(caplog.messages) == before + 1
    assert times == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0]


def test_what_came_meanwhile_is_no_stall_any_more(caplog):
    one = Coordinator(warning=10.0)
    one.controller.submit(0, A, "", 0.0)
    one.controller.submit(0, B, "", 5.0)
    one.submit(6.0, 1, 2)
    one.watch.look(12.0)
    assert one.asked == []
    one.watch.look(15.0)
    assert one.asked == [1, 2]


def test_many_stalls_are_reported_shortly(caplog):
    one = Coordinator(warning=10.0)
    for number in range(37):
        one.controller.submit(0, A._replace(name=f"t{number}"), "", 0.0)
    one.watch.look(10.0)
    one.watch.look(10.0 + ANSWER_TIME)
    assert "... and 27 more operations" in caplog.messages[0].splitlines()
    assert len(caplog.messages[0].splitlines()) == 10 + 1 + 2


def test_an_operation_is_given_up_at_the_timeout_after_a_report(caplog):
    one = Coordinator(warning=0.0, timeout=20.0)
    one.controller.submit(1, A, "train.py:3 in main", 100.0)
    assert one.watch.next_look(100.0) == 110.0
    one.watch.look(110.0)
    one.answer(110.0, 0, 2)
    assert len(caplog.messages) == 1
    assert one.watch.next_look(111.0) == 120.0
    one.watch.look(119.9)
    assert one.controller.decisions() == []
    one.watch.look(120.0)
    (failed,) = one.controller.decisions()
    assert failed.is_stall
    assert failed.ranks == (1,)
    assert failed.text == (
        "allreduce 'a' has waited for 20.0 s: submitted by rank 1 (at train.py:3 in main), not by <0>, <2>"
    )
    assert one.watch.next_look(121.0) == NEVER
    one.watch.look(121.0)
    assert not one.watch.is_busy


def test_waiting_for_an_answer_does_not_delay_giving_up(caplog):
    one = Coordinator(warning=0.0, timeout=2.0)
    one.controller.submit(1, A, "", 0.0)
    one.watch.look(1.0)
    assert one.watch.next_look(1.0) == 2.0
    one.watch.look(2.0)
    assert len(one.controller.decisions()) == 1
    assert len(caplog.messages) == 1


def test_a_reminder_tells_the_coordinator_since_when_a_rank_has_waited():
    one = Coordinator(warning=10.0, timeout=20.0)
    one.controller.submit(1, A, "", 50.0)  # rank 0 was busy and has heard of it only now
    one.watch.reminded(1, 10.0, 50.0)
    one.watch.look(50.0)
    assert one.asked == [0, 2]
    one.watch.reminded(1, 20.0, 60.0)
    one.answer(60.0, 0, 2)
    one.watch.look(60.0)
    assert len(one.controller.decisions()) == 1


def test_the_coordinator_stays_awake_while_a_stall_goes_on():
    one = Coordinator(warning=10.0, timeout=100.0)
    one.controller.submit(1, A, "", 0.0)
    one.watch.look(10.0)
    one.answer(10.0, 0, 2)
    assert one.watch.is_busy
    one.submit(11.0, 0, 2)
    one.watch.look(11.0)
    assert not one.watch.is_busy


# The others -----------------------------------------------------------------------------------------------------------


class Follower:
    """A watch, and how long it said to have waited in its reminders."""

    def __init__(self, warning: float = 10.0, timeout: float = 0.0, causes: Causes | None = None) -> None:
        self.reminders: list[float] = []
        self.watch = FollowerStallMonitor(Timeouts(warning, timeout), "<{}>".format, self.reminders.append, causes)

    def sleep_until(self, now: float, end: float) -> float:
        """Live from `now` to `end` as an engine does that hears nothing."""
        while True:
            wake = self.watch.next_look(now)
            assert wake > now, "it would spin"
            if wake > end:
                return end
            now = wake
            self.watch.look(now)


def test_a_rank_that_hears_nothing_reminds_the_coordinator_less_and_less_often():
    one = Follower(warning=10.0)
    one.sleep_until(100.0, 500.0)
    assert one.reminders == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0]


def test_hearing_from_the_coordinator_begins_the_wait_anew():
    one = Follower(warning=10.0)
    now = one.sleep_until(100.0, 109.0)
    one.watch.heard()
    one.sleep_until(now, 118.9)
    assert one.reminders == []
    one.sleep_until(118.9, 119.1)
    assert len(one.reminders) == 1


def test_the_last_reminder_comes_just_after_the_timeout_and_who_does_not_answer_that_is_given_up_after_its_grace():
    one = Follower(warning=60.0, timeout=20.0)
    now = one.sleep_until(0.0, 24.9)
    assert one.reminders == [10.0, 20.0, pytest.approx(20.05)]
    with pytest.raises(StallError, match=r"^<0>, which coordinates the job, has not answered for 25 s$"):
        one.sleep_until(now, 20.0 + COORDINATOR_GRACE + 1)


# The network ----------------------------------------------------------------------------------------------------------


class Causes:
    """The connection to rank 1 loses packets; that with rank 0 does, too."""

    def of(self, rank):
        return "packets are lost" if rank == 1 else ""

    def to_coordinator(self):
        return "its packets are lost"

    def among(self, missing, answered):
        return [self.of(rank) for rank in missing]


def test_a_report_and_an_error_say_what_the_network_has_to_do_with_it(caplog):
    one = Coordinator(timeout=30.0, causes=Causes())
    one.submit(0.0, 0, 2)
    one.watch.look(10.0)
    one.watch.look(12.0)
    assert caplog.messages[-1].endswith("<1> was asked where it is, and did not answer\npackets are lost")
    one.watch.look(30.0)
    (fail,) = (decision for decision in one.controller.decisions() if isinstance(decision, Fail))
    assert fail.text.endswith("not by <1>; packets are lost")


def test_a_rank_that_waits_alone_behind_a_bad_connection_is_told_when_it_reminds(caplog):
    watch = Coordinator(causes=Causes()).watch
    watch.reminded(2, 10.0, 10.0)
    assert caplog.messages == []
    watch.reminded(1, 10.0, 10.0)
    assert caplog.messages == ["<1> has waited for 10.0 s, and nobody else waits: packets are lost"]


def test_a_rank_says_itself_that_its_connection_with_the_coordinator_is_bad(caplog):
    one = Follower(causes=Causes())
    one.watch.next_look(0.0)
    one.watch.look(10.0)
    assert caplog.messages == ["waiting for 10.0 s for <0>, which coordinates the job: its packets are lost"]
    assert one.reminders == [10.0]
