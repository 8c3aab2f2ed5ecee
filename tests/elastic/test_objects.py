"""ObjectState under a launcher that replaces, drops and adds ranks."""

from __future__ import annotations

import numpy as np
import pytest
from without_launcher.elastic_supervisor import Waiting

STEPS = 20  # and more, until the test lets the job end


def expected(steps: int) -> float:
    weight = np.zeros(1)
    for step in range(steps):
        weight = weight - 0.1 * np.array([float(step)])
    return float(weight[0])


def check(supervisor, least=STEPS):
    """All that is left has come to the end by the same steps, at least so many, and each of them was made once."""
    supervisor.finish()
    ends = [[fact for fact in process.told() if "result" in fact] for process in supervisor.members]
    steps = ends[0][0]["steps"]
    assert steps >= least
    results = [[(fact["result"], fact["steps"]) for fact in facts] for facts in ends]
    assert results == [[(expected(steps), steps)]] * len(supervisor.members)
    assert supervisor.steps_made() == steps


@pytest.mark.gate
def test_killed_ranks_are_replaced_and_each_step_is_made_once(supervise):
    supervisor = supervise("objects", 3, str(STEPS))
    for rank in (1, 0, 2, 0):
        supervisor.members[rank].await_step(supervisor.generation, 10)
        supervisor.replace(rank)
    supervisor.let_end()
    check(supervisor, 40)
    first = supervisor.processes[1], supervisor.processes[2]
    assert [fact["reset"] for process in first for fact in process.told() if "reset" in fact]
    assert not any("reset" in fact for fact in supervisor.processes[-1].told())  # newcomers are not told


def test_a_job_shrinks_to_one_rank_and_grows_again(supervise):
    supervisor = supervise("objects", 3, str(STEPS))
    for rank in (0, 1):
        supervisor.members[0].await_step(supervisor.generation, 10)
        supervisor.replace(rank, newcomers=0)
    supervisor.members[0].await_step(3, 10)
    supervisor.prepare("a host has come")
    newcomer = supervisor.start(1, 2)
    for process in (newcomer, supervisor.members[0]):
        assert supervisor.await_message(process, Waiting)
    supervisor.assign([supervisor.members[0], newcomer])
    supervisor.let_end()
    check(supervisor)
    sizes = [fact["size"] for fact in supervisor.members[0].told() if "step" in fact]
    assert sorted(set(sizes)) == [1, 2, 3]
    assert sizes[-1] == 2


@pytest.mark.gate
def test_a_planned_change_is_made_between_two_steps(supervise):
    supervisor = supervise("objects", 2, str(STEPS))
    supervisor.members[0].await_step(1, 10)
    newcomer = supervisor.start(2, 3)
    supervisor.await_message(newcomer, Waiting)
    supervisor.prepare("a host has come")
    said = [supervisor.await_message(process, Waiting) for process in supervisor.members]
    assert any(message == Waiting(1, "a host has come") for message in said)
    supervisor.assign([*supervisor.members, newcomer])
    supervisor.let_end()
    check(supervisor)
    assert [fact for fact in newcomer.told() if "step" in fact][-1]["size"] == 3


def test_a_rank_that_dies_when_others_have_come_to_the_end_is_replaced(supervise, tmp_path):
    (tmp_path / "end").touch()
    supervisor = supervise("objects", 3, "20", "late")
    supervisor.members[1].await_output(lambda lines: any("is_late" in line for line in lines))
    supervisor.replace(1)
    check(supervisor, 20)
    assert not [fact for fact in supervisor.members[1].told() if "step" in fact]  # there was none left


@pytest.mark.gate
def test_survivors_end_alone_when_one_dies_at_the_end(supervise, tmp_path):
    (tmp_path / "end").touch()
    supervisor = supervise("objects", 2, "20", "late")
    supervisor.members[1].await_output(lambda lines: any("is_late" in line for line in lines))
    supervisor.replace(1, newcomers=0)
    check(supervisor, 20)
