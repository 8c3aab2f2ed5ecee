"""The parts that the decisions about an elastic job are made of."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from distrun.runner.decisions.elastic.barring import WINDOW, Barring
from distrun.runner.decisions.elastic.budget import INCIDENT, Budget
from distrun.runner.decisions.elastic.failure_record import KEPT, FailureHistory, suspected_host
from distrun.runner.decisions.elastic.generation import in_rank_order
from distrun.runner.decisions.elastic.hosts import RETRY, Hosts

RETRY_FIRST, RETRY_LONGEST = RETRY

# --- ranks


@pytest.mark.parametrize(
    ("survivors", "newcomers", "order"),
    [
        ({10: 0, 12: 2, 13: 3}, [14], [10, 14, 12, 13]),  # survivors keep their ranks, and newcomers fill gaps
        ({12: 2, 11: 1, 13: 3}, [14], [11, 14, 12, 13]),  # the lowest survivor becomes rank 0
        ({10: 0, 12: 2, 15: 5}, [], [10, 15, 12]),  # who has too high a rank fills a gap
        ({}, [7, 5], [7, 5]),
        ({}, [], []),
    ],
)
def test_who_gets_which_rank(survivors, newcomers, order):
    assert in_rank_order(survivors, newcomers) == order


@given(st.sets(st.integers(0, 30)), st.integers(0, 20))
def test_ranks_are_given_once_each_and_kept_where_they_can_be(ranks, count):
    survivors = {100 + rank: rank for rank in ranks}
    newcomers = list(range(count))
    order = in_rank_order(survivors, newcomers)
    assert sorted(order) == sorted([*survivors, *newcomers])
    if survivors:
        assert survivors[order[0]] == min(ranks)
    moved = [survivors[process] for rank, process in enumerate(order) if survivors.get(process, rank) != rank]
    assert all(rank == min(ranks) or rank >= len(order) for rank in moved)
    assert [process for process in order if process in newcomers] == newcomers
    fillers = [rank for rank in moved if rank >= len(order)]
    assert fillers == sorted(fillers)


# --- barring


def test_a_slot_that_fails_again_is_barred_for_twice_as_long_each_time():
    barring = Barring((10.0, 35.0))
    ends = []
    for now in range(5):
        barring.failed("h", 0, now)
        barring.failed("other", now, now)  # each time another slot
        ends.append(barring.until("h", 0) - now)
    assert ends[0] <= 0
    assert ends[1:] == [10, 20, 35, 35]
    assert barring.until("h", 1) == barring.until("h")


def test_a_host_is_barred_from_the_third_failure_of_its_slots_on():
    barring = Barring((10.0, 3600.0))
    for slot in range(3):
        assert barring.until("h", 7) <= slot
        barring.failed("h", slot, slot)
    assert barring.until("h", 7) == 12
    assert barring.until("g", 7) <= 2


def test_nothing_is_barred_for_ever():
    barring = Barring((10.0, 3600.0))
    for now in range(1000):
        barring.failed("h", 0, now)
    assert barring.until("h", 0) == 999 + 3600
    assert barring.next_end(1000) == 999 + 3600
    assert barring.next_end(999 + 3600) is None
    barring.failed("h", 0, 999 + WINDOW)
    assert barring.until("h", 0) <= 999 + WINDOW, "what failed long ago counts"


def test_a_host_can_be_barred_at_once():
    barring = Barring((10.0, 3600.0))
    barring.bar("h", 5)
    assert barring.until("h", 0) == 15
    barring.bar("h", 20)
    assert barring.until("h", 0) == 40


# --- the budget


def test_so_many_failures_are_made_good_within_the_window():
    budget = Budget(2, 100.0)
    assert [budget.charge(now) for now in (0, 50, 99, 100, 120, 150)] == [True, True, False, True, False, True]
    assert budget.left(150) == 0
    assert budget.left(250) == 2


def test_without_a_window_the_whole_job_counts():
    budget = Budget(1, None)
    assert budget.charge(0)
    assert not budget.charge(1e9)
    assert budget.describe(1e9) == "0 of 1 restarts are left"
    assert budget.exhausted == "all 1 restarts are used up"


def test_deaths_of_the_same_moment_are_one_failure():
    budget = Budget(2, 3600.0)
    assert budget.charge(100, born=0)
    assert budget.charge(100.1, born=0)
    assert budget.charge(100 + INCIDENT / 2, born=50)
    assert budget.left(101) == 1
    assert budget.charge(100 + INCIDENT / 2, born=100.5), "this one was started after the incident"
    assert budget.left(102) == 0
    assert not budget.charge(100 + 2 * INCIDENT, born=0)


def test_the_budget_in_words():
    assert Budget(10, 3600.0).describe(0) == "10 of 10 restarts are left within the hour"
    assert Budget(1, 60.0).describe(0) == "1 of 1 restarts is left within 60 s"
    assert Budget(0, 60.0).exhausted == "no restart is allowed"


# --- hosts


def test_hosts_are_connected_to_in_their_order_until_there_are_slots_enough():
    hosts = Hosts({"a": 2, "b": 2, "c": 2}, 60.0)
    assert hosts.to_connect(3, 0) == ["a", "b"]
    assert hosts.to_connect(4, 0) == []
    assert hosts.to_connect(5, 0) == ["c"]


def test_another_host_is_tried_beside_one_that_has_failed():
    hosts = Hosts({"a": 2, "b": 2}, 60.0)
    assert hosts.to_connect(2, 0) == ["a"]
    assert hosts.refused("a", "no", 0) == RETRY_FIRST
    assert hosts.to_connect(2, 0) == ["b"]
    hosts.refused("b", "no", 0)
    assert hosts.to_connect(2, 5) == []
    assert hosts.next_retry(5) == RETRY_FIRST
    assert hosts.to_connect(2, RETRY_FIRST) == ["a", "b"]


def test_a_host_is_tried_again_less_and_less_often_and_never_given_up():
    hosts = Hosts({"a": 2}, 60.0)
    waits = [hosts.refused("a", "no", 1000 * attempt) - 1000 * attempt for attempt in range(6)]
    assert waits == [10, 20, 40, RETRY_LONGEST, RETRY_LONGEST, RETRY_LONGEST]


def test_a_host_whose_agent_was_lost_is_not_used_before_it_is_certain_that_it_is_empty():
    hosts = Hosts({"a": 2}, 60.0)
    hosts.is_ready("a")
    hosts.lost("a", "killed", 20.0, 0.0)
    assert hosts.to_connect(2, 1e6) == []
    hosts.certain("a", 5)
    assert hosts.to_connect(2, 5) == ["a"]


def test_a_host_that_is_listed_again_gets_a_new_chance():
    hosts = Hosts({"a": 2}, 60.0)
    hosts.refused("a", "no", 0)
    assert hosts.found({})
    assert hosts.found({"a": 2})
    assert not hosts.found({"a": 2})
    assert hosts.to_connect(2, 1) == ["a"]


# --- links


def test_the_host_that_most_complain_of_is_suspected():
    hosts = {0: "a", 1: "b", 2: "c", 3: "c"}
    complaints = {0: "rank 2 (process 7 on host c) is gone", 1: "lost rank 2", 2: "lost rank 0", 3: "lost rank 1"}
    assert suspected_host(complaints, hosts) == "c"


def test_where_two_complain_of_each_other_nobody_is_suspected():
    assert suspected_host({0: "lost rank 1", 1: "lost rank 0"}, {0: "a", 1: "b"}) is None
    assert suspected_host({0: "no idea", 1: "lost rank 9"}, {0: "a", 1: "b"}) is None


# --- the failure history


def test_the_failure_history_keeps_the_last_failures():
    failure_history = FailureHistory(100.0)
    assert failure_history.lines == []
    failure_history.add("rank 1 on h2 was killed by SIGKILL", 3, 112.34)
    assert failure_history.lines == ["after 12.3 s, generation 3: rank 1 on h2 was killed by SIGKILL"]
    for _ in range(KEPT + 4):
        failure_history.add("host h cannot be used", 0, 100)
    assert len(failure_history.lines) == KEPT + 1
    assert failure_history.lines[:2] == ["(5 earlier failures)", "after 0.0 s, at the start: host h cannot be used"]
