"""A member whose script has raised an exception: one failure, however long its interpreter takes to exit."""

import pytest
from histories.elastic import GRACE, running

from distrun.contract.elastic.messages import Joined
from distrun.runner.decisions.actions import SignalRanks
from distrun.runner.decisions.elastic.actions import BeginGeneration, EndProcesses, StartNewcomers
from distrun.runner.decisions.elastic.failures import GATHER_TIME
from distrun.runner.decisions.events import AgentLost, HostCleaned, ProcessSaid
from distrun.runner.decisions.policy import KILL_TIMEOUT, ROOT_CAUSE_TIMEOUT, State

RAISED = "raised ValueError: no more data at train.py:7 in train"


def left(job):
    """Return how many restarts are left, after the last generation that began."""
    return int(job.said[-1].partition("; ")[2].split()[0])


@pytest.mark.parametrize("delay", [0.0, GATHER_TIME, 1.0, 4.9])
def test_it_costs_one_restart_whenever_it_exits(delay):
    job = running("a3", 3, min_np=2)
    job.raise_error(2)
    job.leave(0, 1)
    if delay < GATHER_TIME:
        job.exit(2, 1)
    assert job.begun([a for a in job.at(GATHER_TIME) if isinstance(a, BeginGeneration)]) == [0, 1]
    text = (
        f"rank 2 on a (pid 102) {RAISED}: generation 2 goes on with 2 ranks; 9 of 10 restarts are left within the hour"
    )
    assert job.said == [text]
    job.meet()
    if delay >= GATHER_TIME:
        (start,) = job.exit(2, 1, now=job.now + delay)
        assert isinstance(start, StartNewcomers)
    assert job.said == [text]
    assert len(job.policy.failure_history) == 1


def test_others_go_on_before_it_has_exited_and_its_slot_is_used_when_it_has():
    job = running("a3", 3, min_np=2)
    assert job.raise_error(2) == []
    assert job.begun(job.at(GATHER_TIME)) == [0, 1]
    job.meet()
    (start,) = job.exit(2, 1)
    assert start.processes == {3}


def test_one_that_does_not_exit_is_ended_after_the_grace_and_given_up_when_it_does_not_end():
    job = running("a3", 3, min_np=2)
    job.raise_error(2)
    job.at(GATHER_TIME)
    job.meet()
    assert job.policy.deadline == GRACE
    assert job.at(GRACE) == [EndProcesses(frozenset({2}), GRACE)]
    job.at(job.policy.deadline)
    assert job.now == 2 * GRACE + KILL_TIMEOUT
    assert job.said[-1] == "rank 2 on a (pid 102) does not end, not even by SIGKILL"


def test_ranks_that_all_raise_are_started_again_when_all_have_exited():
    job = running("a2", 2, min_np=1)
    job.raise_error(0)
    job.raise_error(1)
    assert job.at(GATHER_TIME) == []
    assert job.exit(0, 1) == [], "rank 1 has not exited"
    assert job.begun(job.exit(1, 1)) == [2, 3]
    assert left(job) == 9


def test_without_restarts_its_exit_is_waited_for_so_that_it_can_save_what_it_has():
    job = running("a3", 3, min_np=2, max_restarts=0)
    assert job.raise_error(2) == []
    job.leave(0, 1)
    assert job.at(GRACE - 0.1) == []
    assert job.policy.state is State.SETTLING
    (end,) = job.exit(2, 1)
    assert isinstance(end, SignalRanks)
    assert job.policy.failure.what == "exited with code 1; no restart is allowed"


def test_without_restarts_it_ends_the_job_after_the_grace_if_it_does_not_exit():
    job = running("a3", 3, min_np=2, max_restarts=0)
    job.raise_error(2)
    (end,) = job.at(GRACE)
    assert isinstance(end, SignalRanks)
    assert job.policy.failure.what == f"{RAISED}; no restart is allowed"


def settled():
    """Return a job that has taken the failure of rank 2, of which nothing was heard, for that of a link."""
    job = running("a2b1", 3, min_np=2, max_restarts=2)
    job.leave(0, 1)
    job.at(job.policy.deadline)
    assert job.now >= ROOT_CAUSE_TIMEOUT
    assert job.policy.state is State.REGROUPING
    return job


CAUSES = {
    "its exit": (lambda job: job.exit(2, 1), "rank 2 on b (pid 102) exited with code 1"),
    "its signal": (lambda job: job.exit(2, -11), "rank 2 on b (pid 102) was killed by SIGSEGV"),
    "its exception": (lambda job: job.raise_error(2), f"rank 2 on b (pid 102) {RAISED}"),
    "its agent": (lambda job: job.hear(AgentLost("b", "the agent on b was killed", 137)), "the agent on b was killed"),
}


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_cause_that_is_heard_of_after_the_generation_was_left_is_the_same_failure(cause, has_begun):
    job, (happens, sentence) = settled(), CAUSES[cause]
    if has_begun:
        assert job.begun(job.at(job.policy.deadline)) == [0, 1, 2]
    job.now += 3.0
    happens(job)
    assert [line.partition(": ")[2] for line in job.policy.failure_history] == [sentence], "a line per cause"
    job.at(job.now + GATHER_TIME)
    job.hear(HostCleaned("b", True))
    assert job.said[-1].startswith(f"{sentence}: generation")
    assert left(job) == 1


def test_who_has_met_the_others_since_has_failed_anew():
    job = settled()
    job.at(job.policy.deadline)
    job.meet()
    job.exit(2, 1, now=job.now + 3.0)
    job.at(job.now + GATHER_TIME)
    assert left(job) == 0
    assert len(job.policy.failure_history) == 2


def test_who_did_not_lose_its_peers_explains_nothing():
    job = settled()
    job.at(job.policy.deadline)
    job.hear(ProcessSaid(2, Joined(2)))
    job.exit(2, 1, now=job.now + 3.0)
    job.at(job.now + GATHER_TIME)
    assert left(job) == 0
