"""Ranks that leave a generation and join the next: who they are then, what they keep, and what is left of the last."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from session.tiers import one_in_gate
from without_launcher.elastic_supervisor import DEADLINE, Process as Rank, Supervisor, Waiting, python

from distrun.contract.elastic.messages import Enrolled, Finished, Joined

FOREVER = str(1 << 40)


def begun(rank: Rank, generation: int) -> dict[str, object]:
    """Wait until a rank has begun a generation, and made a step in it; return what it found there."""
    rank.await_step(generation)
    return next(fact for fact in rank.told() if fact.get("begun") == generation)


def started(supervise: Callable[..., Supervisor], size: int, hosts: int = 1) -> Supervisor:
    """Start a job whose ranks have all begun the first generation."""
    supervisor = supervise("generations", size, FOREVER, hosts=hosts)
    for rank in supervisor.members:
        begun(rank, 1)
    return supervisor


def held(rank: Rank) -> dict[int, list[int]]:
    """Return what a rank held in each generation: descriptors, threads, mappings."""
    return {fact["generation"]: fact["held"] for fact in rank.told() if "held" in fact}


@pytest.mark.parametrize(
    ("killed", "hosts"),
    [pytest.param(0, 1, marks=pytest.mark.gate), pytest.param(3, 2, marks=pytest.mark.gate), (1, 1), (0, 2)],
)
def test_the_others_go_on_when_a_rank_is_killed(supervise, killed, hosts):
    supervisor = started(supervise, 4, hosts=hosts)
    supervisor.kill(killed)
    supervisor.assign(supervisor.members, f"rank {killed} was killed by SIGKILL")
    for place, rank in enumerate(supervisor.members):
        facts = begun(rank, 2)
        assert (facts["rank"], facts["size"]) == (place, 3)
        assert any(f"rank {killed} " in str(fact["over"]) for fact in rank.told() if "over" in fact)


@pytest.mark.gate
@pytest.mark.parametrize("hosts", one_in_gate(2, 1))
def test_two_ranks_are_killed_at_once_and_a_newcomer_agrees_with_the_survivors(supervise, hosts):
    supervisor = started(supervise, 4, hosts=hosts)
    supervisor.kill(2)
    supervisor.replace(0)
    facts = [begun(rank, 2) for rank in supervisor.members]
    assert [fact["rank"] for fact in facts] == [0, 1, 2]
    same = [{name: fact[name] for name in ("size", "number", "sets", "inner", "pair")} for fact in facts]
    assert same[1:] == same[:1] * 2, "a newcomer counts otherwise than survivors"
    assert (same[0]["number"], same[0]["inner"]) == (1, 3)
    assert [fact["evens"] for fact in facts] == [[2.0], None, [2.0]]


@pytest.mark.gate
def test_process_sets_follow_the_size_of_the_generation(supervise):
    supervisor = supervise("generations", 4, FOREVER)
    sets = []
    for killed in (3, 2, 1):
        sets.append([begun(rank, supervisor.generation)["sets"] for rank in supervisor.members])
        pairs = {begun(rank, supervisor.generation)["pair"] for rank in supervisor.members}
        if len(supervisor.members) > 2:
            assert pairs == {2}
        else:
            (said,) = pairs
            assert "does not exist in this generation of the job, which has ranks 0 to 1" in str(said)
        supervisor.kill(killed)
        supervisor.assign(supervisor.members)
    alone = begun(supervisor.members[0], 4)
    assert (alone["size"], alone["evens"], alone["inner"]) == (1, [1.0], None)
    assert sets == [
        [{"0": [0, 1, 2, 3], "1": [0, 2], "2": [0, 2], "3": [0]}] * 4,
        [{"0": [0, 1, 2], "1": [0, 2], "2": [0, 2], "3": [0]}] * 3,
        [{"0": [0, 1], "1": [0], "2": [0, 2], "3": [0]}] * 2,
    ]


@pytest.mark.gate
def test_a_planned_change_aborts_nothing_and_a_process_keeps_its_slot(supervise):
    supervisor = started(supervise, 3)
    supervisor.grow(2, "two slots are free again")
    facts = [begun(rank, 2) for rank in supervisor.members]
    assert [(fact["rank"], fact["size"], fact["slot"]) for fact in facts] == [(place, 5, place) for place in range(5)]
    over = [fact["over"] for rank in supervisor.members[:3] for fact in rank.told() if "over" in fact]
    # Who comes to its boundary later finds the other gone, perhaps.
    assert all("two slots are free again" in why or "it leaves this generation" in why for why in over)
    survivors = supervisor.members[2:]
    for place in (0, 0):
        supervisor.kill(place)
    supervisor.assign(survivors)
    assert [(begun(rank, 3)["rank"], begun(rank, 3)["slot"]) for rank in survivors] == [(0, 2), (1, 3), (2, 4)]


@pytest.mark.gate
@pytest.mark.parametrize("hosts", one_in_gate(2, 1))
def test_a_rank_that_is_killed_while_the_others_wait_for_it(supervise, hosts):
    """The rendezvous of a generation can never be complete: the next assignment ends it at once."""
    supervisor = started(supervise, 4, hosts=hosts)
    late = supervisor.members[3]
    late.popen.send_signal(signal.SIGSTOP)
    supervisor.kill(1)
    supervisor.assign(supervisor.members)
    for rank in supervisor.members[:-1]:
        assert supervisor.await_message(rank, Waiting).generation == 1
    for first in (0, 1):  # a rank 0 that waits is left behind in its turn
        late.popen.send_signal(signal.SIGCONT if first else signal.SIGSTOP)
        if first:
            late.popen.send_signal(signal.SIGKILL)
            supervisor.members.remove(late)
        supervisor.assign(supervisor.members[::-1])
    for place, rank in enumerate(supervisor.members):
        facts = begun(rank, 4)
        assert (facts["rank"], facts["size"]) == (place, 2)


@pytest.mark.gate
def test_a_rank_that_was_stopped_for_a_generation_joins_the_next(supervise):
    supervisor = started(supervise, 3)
    ranks = list(supervisor.members)
    ranks[0].popen.send_signal(signal.SIGSTOP)
    supervisor.assign(ranks[1:], "rank 0 does not answer")
    for rank in ranks[1:]:
        begun(rank, 2)
    ranks[0].popen.send_signal(signal.SIGCONT)
    supervisor.assign(ranks, "rank 0 answers again")
    for place, rank in enumerate(ranks):
        facts = begun(rank, 3)
        assert (facts["rank"], facts["size"]) == (place, 3)


@pytest.mark.parametrize(
    ("hosts", "fan_out"), [pytest.param(2, 1, marks=pytest.mark.gate), (1, 0), (2, 0)], ids=["tree", "1", "2"]
)
def test_thirty_generations_leave_nothing_behind(supervise, hosts, fan_out):
    supervisor = supervise("generations", 3, FOREVER, hosts=hosts, DISTRUN_FAN_OUT=str(fan_out))
    for generation in range(1, 32):
        for rank in supervisor.members:
            begun(rank, generation)
        supervisor.assign(supervisor.members)
    for rank in supervisor.members:
        begun(rank, 32)
        counts = held(rank)
        assert all(counts[generation] == counts[2] for generation in range(3, 32)), counts


@pytest.mark.gate
def test_a_job_ends_when_the_steps_are_made(supervise):
    supervisor = supervise("generations", 3, "20", "2")
    supervisor.members[0].await_step(1, 2)
    supervisor.assign(supervisor.members)
    supervisor.finish(3)
    for rank in supervisor.members:
        assert supervisor.await_message(rank, Finished) == Finished()


@pytest.mark.gate
@pytest.mark.parametrize("when", one_in_gate("joining", "training", "waiting"))
def test_ranks_end_when_their_launcher_has(supervise, when):
    supervisor = started(supervise, 3)
    first, second, third = supervisor.members
    if when != "training":
        supervisor.kill(2)
        third.control.close()
        for rank in (first, second):
            supervisor.await_message(rank, Waiting)
    if when == "joining":
        supervisor.assign([first, third_again(supervisor), second])
        assert not any(fact.get("begun") == 2 for rank in (first, second) for fact in rank.told())
    for rank in supervisor.processes:
        rank.control.close()
    for rank in (first, second):
        assert rank.popen.wait(DEADLINE) == 1
        rank.await_output(lambda lines: any("the launcher is gone" in line for line in lines))


def third_again(supervisor: Supervisor) -> Rank:
    """Start a newcomer that never comes."""
    process = supervisor.start(2, 3)
    process.popen.send_signal(signal.SIGSTOP)
    return process


@pytest.mark.gate
def test_a_script_that_leaves_and_joins_by_itself_meets_the_others_again(supervise):
    """The inits of a generation are counted, so that who is ahead waits for who is not."""
    supervisor = supervise("lives", 3)
    for rank in supervisor.members:
        for _ in range(3):
            assert supervisor.await_message(rank, Joined) == Joined(1)
        supervisor.await_message(rank, Enrolled)
    supervisor.kill(1)
    supervisor.assign(supervisor.members)
    supervisor.finish(2)


@pytest.mark.gate
def test_a_process_whose_channel_was_closed_on_the_way_is_an_ordinary_rank(tmp_path):
    program = "import distrun; from distrun.runtime.world import regroup; distrun.init(); print(regroup.is_elastic())"
    wrapper = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    with Supervisor([*python("-c"), wrapper, program], tmp_path) as supervisor:
        supervisor.begin(1)
        supervisor.finish(1)
        assert supervisor.members[0].output() == "False"


@pytest.mark.gate
def test_a_forked_child_has_no_channel(tmp_path):
    program = """
import os, distrun
from distrun.runtime.world import regroup
distrun.init()
held = len(os.listdir("/proc/self/fd"))
if not os.fork():
    print(regroup.is_elastic(), len(os.listdir("/proc/self/fd")) < held, flush=True)
    os._exit(0)
os.wait()
print(regroup.is_elastic())
"""
    with Supervisor(python("-c", program), tmp_path) as supervisor:
        supervisor.begin(1)
        supervisor.finish(1)
        assert supervisor.members[0].output().splitlines() == ["False True", "True"]
