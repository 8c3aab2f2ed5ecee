"""The decisions about an elastic job, by histories of events: no process, no clock but the one in the test."""

import signal

import pytest
from histories.elastic import GRACE, START_TIMEOUT, History, connecting, ready, running

from distrun.contract.elastic.messages import Ending, Enrolled, Imported, Joined, Waiting, Warm
from distrun.runner.decisions.actions import CleanUpAfter, FinishAgents, SignalRanks, TellDeparture
from distrun.runner.decisions.elastic.actions import (
    BeginGeneration,
    ConnectHosts,
    EndProcesses,
    PrepareMembers,
    ReleaseHost,
    StartNewcomers,
    StartSpares,
)
from distrun.runner.decisions.elastic.failure_record import FUTILE_TIME
from distrun.runner.decisions.elastic.failures import GATHER_TIME
from distrun.runner.decisions.elastic.policy import REMINDER
from distrun.runner.decisions.elastic.regrouping import BATCH_TIMEOUT
from distrun.runner.decisions.elastic.staffing import SPARES_TIMEOUT
from distrun.runner.decisions.elastic.workforce import UNKNOWN_TIMEOUT
from distrun.runner.decisions.events import (
    AgentGone,
    AgentLost,
    HostCleaned,
    HostReady,
    HostRefused,
    HostsFound,
    HostStep,
    ProcessSaid,
    RankExited,
    RankNotStarted,
    RankStarted,
    SignalReceived,
    TimeUp,
)
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import KILL_TIMEOUT, ROOT_CAUSE_TIMEOUT, State
from distrun.runner.protocol.exits import RankExit

TERM = SignalRanks(signal.SIGTERM)


def lost(host, **how):
    return AgentLost(host, f"the agent on {host} was killed by SIGKILL", 137, **how)


def started(actions):
    """Return the newcomers that the only action starts."""
    (action,) = actions
    assert isinstance(action, StartNewcomers)
    return sorted(action.processes)


# --- the start


def test_the_first_generation_begins_when_the_hosts_that_are_needed_are_ready():
    job = History("a2b2c2", 3)
    assert job.at(0) == [ConnectHosts(frozenset("ab"))]
    assert job.hear(HostReady("b")) == []
    assert job.policy.state is State.CONNECTING
    (begin,) = job.hear(HostReady("a"))
    assert begin.generation.number == 1
    assert begin.start == {0, 1, 2}
    assert (job.processes, job.places) == ([0, 1, 2], "a0 a1 b0")
    assert job.policy.state is State.RUNNING
    assert job.said == []


def test_a_job_that_runs_has_no_deadline_to_wake_up_for():
    assert running().policy.deadline is None


def test_a_host_that_refuses_is_replaced_by_one_in_reserve():
    job = connecting("a2b2c2", 4)
    job.hear(HostReady("a"))
    assert job.hear(HostRefused("b", "no key")) == [ConnectHosts(frozenset("c"))]
    assert job.begun(job.hear(HostReady("c"))) == [0, 1, 2, 3]
    assert job.said == ["host b cannot be used: no key"]


def test_a_job_begins_with_fewer_ranks_if_it_may():
    job = connecting("a2b2", 4, min_np=2)
    job.hear(HostRefused("b", "no key"))
    assert job.begun(job.hear(HostReady("a"))) == [0, 1]


def test_hosts_that_refuse_end_a_job_that_needs_them():
    job = connecting("a2b2", 4)
    job.hear(HostReady("a"))
    assert job.hear(HostRefused("b", "no key")) == [FinishAgents(0.0)]
    assert job.policy.status == 2
    assert job.policy.failure.what == "host b cannot be used, so no rank was started: no key"
    job.hear(AgentGone("a", 0))
    assert job.policy.state is State.OVER


def test_a_host_that_does_not_answer_in_time_is_named_with_the_step_that_it_has_come_to():
    job = connecting("a2", 2)
    job.hear(HostStep("a", "logging in as me"))
    assert job.policy.deadline == START_TIMEOUT
    assert job.at(START_TIMEOUT) == [FinishAgents(0.0)]
    assert "logging in as me took longer than the 60 s of --start-timeout" in job.policy.failure.what
    assert job.policy.state is State.OVER


def test_too_few_slots_end_the_job():
    assert ready("a2", 3).policy.failure.what == "the hosts have 2 slots, fewer than the 3 ranks of --min-np"


def test_a_job_whose_hosts_are_found_waits_for_them():
    job = History("", 3, min_np=2, max_np=8, discovers=True)
    assert job.at(0) == []
    assert job.said == [], "it has hardly begun"
    job.at(BATCH_TIMEOUT)
    assert job.said == ["waiting for 3 more ranks"]
    assert job.hear(HostsFound({"a": 2})) == [ConnectHosts(frozenset("a"))]
    assert job.hear(HostReady("a")) == [], "two would do, three are asked for"
    assert job.hear(HostsFound({"a": 2, "b": 2}), now=30) == [ConnectHosts(frozenset("b"))]
    assert len(job.begun(job.hear(HostReady("b")))) == 4


def test_a_job_whose_hosts_are_not_found_begins_with_what_it_has_or_ends():
    for slots, ranks in ((1, None), (2, 2)):
        job = History("", 3, min_np=2, discovers=True)
        job.at(0)
        job.hear(HostsFound({"a": slots}))
        job.hear(HostReady("a"))
        job.at(BATCH_TIMEOUT)
        assert job.policy.deadline == 600
        actions = job.at(600)
        if ranks is None:
            assert actions == [FinishAgents(0.0)]
            assert job.policy.failure.what.splitlines() == [
                "the job had 1 of the 2 ranks of --min-np for the 600 s of --elastic-timeout",
                "    the hosts have no more than 1 slot",
            ]
        else:
            assert len(job.begun(actions)) == ranks


def test_a_command_that_cannot_be_started_ends_the_job_at_once():
    job = ready("a2", 2)
    assert job.hear(RankNotStarted(0, 127, "no such file")) == [TERM]
    assert job.policy.status == 127


def test_a_newcomer_that_cannot_be_started_is_a_failure_of_its_slot():
    job = running(min_np=3)
    assert started(job.kill(1)) == [4]
    job.at(GATHER_TIME)
    assert job.hear(RankNotStarted(4, 127, "no such file")) == [], "the slot has failed twice"
    assert job.policy.state is State.RUNNING
    assert started(job.at(job.policy.deadline)) == [5]


def test_ranks_that_do_not_start_in_time_are_replaced():
    job = ready("a2", 2)
    job.hear(RankStarted(1, 100))
    assert job.policy.deadline == START_TIMEOUT
    actions = job.at(START_TIMEOUT)
    assert EndProcesses(frozenset({0}), 0.0) in actions
    assert EndProcesses(frozenset({1}), GRACE) in actions
    assert job.policy.failure_history == ["after 60.0 s, generation 1: rank 0 on a did not start within 60 s"]


# --- deaths


def test_survivors_go_on_at_once_if_they_are_enough_and_grow_again():
    job = running(min_np=2)
    assert started(job.kill(1, now=10)) == [4], "its replacement is started at once"
    assert job.policy.state is State.REGROUPING
    assert job.policy.deadline == 10 + GATHER_TIME
    (begin,) = job.at(10 + GATHER_TIME)
    assert begin.generation.reason == "rank 1 on a (pid 101) was killed by SIGKILL"
    assert begin.start == set()
    assert (job.processes, job.places) == ([0, 3, 2], "a0 a3 a2")
    assert job.said == [
        "rank 1 on a (pid 101) was killed by SIGKILL: generation 2 goes on with 3 ranks; "
        "9 of 10 restarts are left within the hour"
    ]
    job.meet()
    assert job.arrive(4) == [PrepareMembers(2, frozenset({0, 2, 3}), "1 rank joins")]
    assert job.policy.state is State.PREPARING
    assert job.leave(0) == job.leave(3) == []
    assert job.begun(job.leave(2)) == [0, 3, 2, 4]
    assert job.said[1:] == ["1 rank joins: generation 3 goes on with 4 ranks"]
    assert job.policy.state is State.RUNNING


def test_survivors_that_are_too_few_wait_for_a_replacement():
    job = running()
    (start,) = job.kill(0, now=10)
    assert start.processes == {4}
    assert [member.process for member in start.expected.members] == [1, 4, 2, 3], "the lowest survivor is rank 0"
    assert job.at(10 + GATHER_TIME) == []
    assert job.said == ["rank 0 on a (pid 100) was killed by SIGKILL: waiting for 1 more rank"]
    assert job.policy.deadline == 10 + START_TIMEOUT, "within which the newcomer must be started"
    assert job.begun(job.arrive(4, now=15)) == [1, 4, 2, 3]
    assert job.said[1:] == ["generation 2 goes on with 4 ranks; 9 of 10 restarts are left within the hour"]


def test_deaths_of_the_same_moment_are_one_regroup_and_one_restart():
    job = running(min_np=1)
    job.kill(1, now=10)
    job.kill(2, now=job.now + GATHER_TIME / 2)
    assert job.at(10 + GATHER_TIME) == []
    assert job.begun(job.at(10 + 1.5 * GATHER_TIME)) == [0, 3]
    assert "9 of 10 restarts" in job.said[-1]


def test_a_death_before_the_next_generation_has_met_is_one_more_regroup():
    job = running(min_np=1)
    job.kill(1)
    job.at(1)
    assert job.processes == [0, 3, 2]
    job.kill(3, now=5)
    assert job.begun(job.at(6)) == [0, 2]
    assert job.generation.number == 3


def test_what_members_said_of_an_older_generation_is_of_no_concern():
    job = running(min_np=1)
    job.kill(1)
    job.at(1)
    for process in (0, 2, 3):
        assert job.hear(ProcessSaid(process, Waiting(1, "lost rank 1"))) == []
        assert job.hear(ProcessSaid(process, Joined(1))) == []
    assert job.policy.state is State.RUNNING


def test_where_nobody_is_enrolled_all_are_started_anew():
    job = running(enrolled=False)
    assert job.kill(1) == [EndProcesses(frozenset({0, 2, 3}), GRACE)]
    assert job.exit(0, 1, lost_peer=True) == job.exit(2, -15) == []
    assert job.at(1) == []
    (begin,) = job.exit(3, 0)
    assert begin.start == {4, 5, 6, 7}
    assert job.places == "a0 a1 a2 a3"
    assert job.said == [
        "rank 1 on a (pid 101) was killed by SIGKILL: 4 ranks start again; 9 of 10 restarts are left within the hour"
    ]


def test_the_user_learns_whose_state_is_lost_when_nobody_who_had_it_is_left():
    job = running("a2b1", 3)
    job.kill(*job.processes)
    job.at(GATHER_TIME)
    text = "3 ranks start again: the training state is lost with ranks 0-2 on a and b; 9 of 10 restarts are left"
    assert text in job.said[-1]
    job.kill(*job.processes)
    job.at(2 * GATHER_TIME)
    assert "state" not in job.said[-1], "it had none yet"


def test_a_rank_that_lost_a_peer_waits_for_the_root_cause():
    job = running(enrolled=False)
    assert job.exit(0, 1, lost_peer=True, now=10) == []
    assert job.policy.state is State.SETTLING
    assert job.kill(2, now=10.5) == [EndProcesses(frozenset({1, 3}), GRACE)]
    assert job.policy.failure_history == ["after 10.5 s, generation 1: rank 2 on a (pid 102) was killed by SIGKILL"]


def test_if_all_have_lost_their_peers_the_first_is_reported():
    job = running(enrolled=False)
    for process in (1, 0, 3):
        assert job.exit(process, 1, lost_peer=True) == []
    job.exit(2, 1, lost_peer=True)
    assert job.policy.state is State.REGROUPING
    assert "rank 1 on a (pid 101) exited with code 1" in job.policy.failure_history[0]
    assert len(job.begun(job.at(1))) == 4


def test_who_is_not_enrolled_is_replaced_while_the_others_survive():
    job = running(enrolled=False)
    for process in (0, 1):
        job.hear(ProcessSaid(process, Enrolled([])))
    end, start = job.kill(3)
    assert end == EndProcesses(frozenset({2}), GRACE)
    assert start.processes == {4}, "the other slot is not free yet"
    job.arrive(4)
    assert started(job.exit(2, -15)) == [5]
    assert job.at(1) == []
    assert job.begun(job.arrive(5)) == [0, 1, 5, 4]


def test_a_process_that_does_not_end_is_given_up():
    job = running(min_np=3, enrolled=False)
    job.kill(1)
    job.exit(0, -15)
    job.exit(2, -15)
    job.at(1)
    assert job.policy.deadline == GRACE + KILL_TIMEOUT
    job.at(GRACE + KILL_TIMEOUT)
    assert job.said[0] == "rank 3 on a (pid 103) does not end, not even by SIGKILL"
    assert job.places == "a0 a1 a2", "its slot is not used"


# --- the budget and barring


def test_the_failure_that_is_one_too_many_ends_the_job():
    job = running(min_np=1, max_restarts=1)
    job.kill(1)
    job.at(1)
    assert job.kill(2, now=10) == [TERM]
    assert job.policy.state is State.ENDING
    assert job.policy.failure.what == "was killed by SIGKILL; all 1 restarts within the hour are used up"
    assert (job.policy.failure.rank, job.policy.status) == (2, 137)
    assert len(job.policy.failure_history) == 2
    for process in (0, 3):
        job.exit(process, -15)
    job.exit(4, -15)
    assert job.policy.state is State.FINISHING
    job.hear(AgentGone("a", 0))
    assert job.policy.state is State.OVER


def test_without_restarts_the_first_failure_ends_the_job():
    job = running(max_restarts=0)
    assert job.exit(1, 42) == [TERM]
    assert job.policy.failure.what == "exited with code 42; no restart is allowed"
    assert job.policy.status == 42


def test_a_script_that_fails_before_any_rank_has_joined_is_not_tried_for_ever():
    job = ready("a2", 2)
    for attempt in range(3):
        job.now = 10 * attempt
        for process in job.processes:
            job.hear(RankStarted(process, 1))
        first, second = job.processes
        actions = job.exit(first, 1)
        if attempt < 2:
            job.exit(second, -15)
            job.at(job.now + 1)
    assert actions == [TERM]
    assert job.policy.failure.what == "exited with code 1; no rank has joined the job in any of 3 generations"


def test_who_asks_for_so_many_restarts_gets_them():
    job = ready("a1", 1, max_restarts=4, gives_up_early=False)
    for number in range(1, 6):
        actions = job.exit(job.processes[0], 1, now=10 * number)
        job.at(job.now + 1)
    assert job.generation.number == 5
    assert actions == [FinishAgents(GRACE)]


@pytest.mark.parametrize(("end", "seconds"), [(-9, 10), (1, FUTILE_TIME + 1)])
def test_a_rank_that_is_killed_from_outside_or_fails_late_does_not_make_a_generation_futile(end, seconds):
    job = ready("a1", 1)
    for number in range(1, 6):
        job.exit(job.processes[0], end, now=seconds * number)
        job.at(job.now + GATHER_TIME)
    assert job.policy.state is State.RUNNING


def test_a_slot_that_fails_twice_is_left_out_for_a_while():
    job = running(min_np=1)
    job.kill(1, now=10)
    job.at(11)
    job.meet()
    job.arrive(4)
    job.leave(*job.processes)
    job.meet()
    assert job.kill(4, now=20) == [], "its slot is barred"
    job.at(21)
    assert job.places == "a0 a3 a2"
    assert job.policy.deadline == 30
    assert started(job.at(30)) == [5]


def test_what_is_barred_is_used_if_the_job_cannot_go_on_without():
    job = running("a2", 2)
    for number in range(1, 5):
        (newcomer,) = started(job.kill(job.processes[1], now=10 * number))
        job.at(job.now + 1)
        job.arrive(newcomer)
        job.meet()
    assert job.generation.number == 5


def test_newcomers_that_fail_at_the_start_are_tried_less_and_less_often():
    job = running("a2", 2, elastic_timeout=60.0)
    (newcomer,) = started(job.kill(1))
    tries = []
    while job.policy.state is State.REGROUPING:
        if newcomer is not None:
            job.exit(newcomer, 1)
            newcomer = None
        for action in job.at(job.policy.deadline):
            if isinstance(action, StartNewcomers):
                (newcomer,) = action.processes
                tries.append(job.now)
    assert tries == [10, 30]
    assert job.policy.failure.what.splitlines() == [
        "the job had 1 of the 2 ranks of --min-np for the 60 s of --elastic-timeout",
        "    host a: 1 slot barred after failures",
    ]
    assert len(job.policy.failure_history) == 4


def test_another_slot_is_taken_before_one_that_is_barred():
    job = running("a2b2", 2)
    (newcomer,) = started(job.kill(1, now=10))
    job.at(11)
    job.arrive(newcomer)
    job.meet()
    assert job.kill(newcomer, now=20)[0] == ConnectHosts(frozenset("b"))


# --- links


def test_where_all_have_lost_their_peers_and_nobody_died_all_go_on_together():
    job = running(min_np=2)
    job.now = 10
    assert job.leave(2, 0, 3, reason="the connection to rank 1 broke") == []
    assert job.policy.state is State.SETTLING
    assert job.leave(1, reason="the connection to rank 0 broke") == []
    assert job.begun(job.at(10 + GATHER_TIME)) == [0, 1, 2, 3]
    assert job.said == [
        "rank 2 on a has lost its peers: the connection to rank 1 broke: generation 2 goes on with 4 ranks; "
        "9 of 10 restarts are left within the hour"
    ]


def test_somebody_who_has_not_heard_that_a_link_failed_is_not_waited_for_long():
    job = running()
    job.leave(2, now=10)
    assert job.policy.deadline == 10 + ROOT_CAUSE_TIMEOUT
    job.at(10 + ROOT_CAUSE_TIMEOUT)
    assert job.policy.state is State.REGROUPING
    assert job.begun(job.at(12)) == [0, 1, 2, 3]


def test_a_host_that_may_have_been_cut_off_is_waited_for_longer():
    job = running("a2b2")
    job.leave(0, now=10)
    assert job.policy.deadline == 10 + ROOT_CAUSE_TIMEOUT + 3
    assert job.hear(lost("b", was_silent=True), now=12)[0] == CleanUpAfter("b")
    assert "the agent on b" in job.policy.failure_history[0]


def test_a_host_whose_links_fail_twice_in_a_row_is_barred():
    job = running("a2b2c2", 6, min_np=4)
    for number in (1, 2):
        job.now = 10 * number
        for process in (0, 1, 2, 3):
            job.leave(process, reason="the connection to rank 4 broke")
        job.leave(4, reason="the connection to rank 0 broke")
        actions = job.leave(5, reason="the connection to rank 2 broke")
        if number == 1:
            assert actions == []
            job.at(11)
            job.meet()
    assert actions == [EndProcesses(frozenset({4, 5}), 0.0)]
    assert "host c is barred for a while: its links have failed twice in a row" in job.said
    job.exit(4, -9)
    job.exit(5, -9)
    job.at(21)
    assert job.places == "a0 a1 b0 b1"


# --- lost hosts


def test_no_generation_begins_before_it_is_certain_that_the_lost_host_is_empty():
    job = running("a2b2", min_np=2)
    assert job.hear(lost("b"), now=10) == [CleanUpAfter("b")]
    assert job.at(20) == []
    assert job.hear(HostCleaned("b", is_certain=True)) == [
        ConnectHosts(frozenset("b")),
        BeginGeneration(job.generation, frozenset()),
    ]
    assert (job.processes, job.places) == ([0, 1], "a0 a1")
    assert job.said[0].startswith("the agent on b was killed by SIGKILL: generation 2 goes on with 2 ranks")


@pytest.mark.parametrize(("keepalive", "margin"), [(15.0, 17.0), (None, UNKNOWN_TIMEOUT)])
def test_a_host_that_cannot_be_reached_has_given_up_after_a_while(keepalive, margin):
    job = running("a2b2", min_np=2, keepalive=keepalive)
    job.hear(lost("b"), now=10)
    job.hear(HostCleaned("b", is_certain=False))
    assert job.policy.deadline == 10 + GATHER_TIME
    job.at(11)
    assert job.policy.deadline == 10 + margin
    assert job.at(10 + margin - 0.1) == []
    connect, _ = job.at(10 + margin)
    assert connect == ConnectHosts(frozenset("b"))
    assert job.places == "a0 a1"


def test_an_agent_that_was_silent_has_given_up_already():
    job = running("a2b2", min_np=2)
    job.hear(lost("b", was_silent=True))
    job.at(GATHER_TIME)
    assert job.places == "a0 a1"


def test_a_job_that_lacks_ranks_ends_when_the_allocation_is_over():
    job = running("a2b2", min_np=3)
    job.hear(lost("b"))
    job.at(1)
    assert job.hear(HostCleaned("b", is_certain=True)) == [ConnectHosts(frozenset("b"))]
    assert job.hear(HostRefused("b", "job 7 has expired", is_final=True)) == [TERM]
    assert job.policy.failure.what == "job 7 has expired, so no rank can be started any more"
    assert job.policy.status == 137


def test_a_job_that_has_ranks_enough_goes_on_when_the_allocation_is_over():
    job = running("a2b2", min_np=2)
    job.hear(lost("b"))
    job.at(1)
    job.hear(HostCleaned("b", is_certain=True))
    job.meet()
    assert job.hear(HostRefused("b", "job 7 has expired", is_final=True)) == []
    assert job.said[-1] == "no host can be used any more: job 7 has expired"
    assert job.at(1000) == []


def test_a_host_that_comes_back_is_used_again():
    job = running("a2b2", min_np=2)
    job.hear(lost("b"))
    job.at(1)
    job.hear(HostCleaned("b", is_certain=True))
    job.meet()
    assert job.hear(HostRefused("b", "no route"), now=5) == []
    assert job.policy.deadline == 5 + 20, "its second failure"
    assert job.at(25) == [ConnectHosts(frozenset("b"))]
    assert started(job.hear(HostReady("b"))) == [4, 5]
    assert job.arrive(4) == []
    assert isinstance(job.arrive(5)[0], PrepareMembers)


def test_deaths_of_ranks_and_then_of_their_agent_are_one_failure():
    job = running("a2b2", min_np=2)
    job.kill(2, 3)
    job.hear(lost("b"))
    assert job.policy.failure_history[-1].endswith("the agent on b was killed by SIGKILL")
    job.hear(HostCleaned("b", is_certain=True))
    job.at(2)
    assert "9 of 10" in job.said[-1]


def test_an_agent_that_leaves_unasked_is_lost():
    job = running("a2b2", min_np=2)
    job.hear(AgentGone("b", 0))
    assert job.policy.state is State.REGROUPING


def test_too_few_ranks_for_too_long_end_the_job_and_it_says_what_is_missing():
    job = running("a2b2", elastic_timeout=100.0)
    job.hear(lost("b"), now=10)
    job.at(11)
    assert job.hear(HostCleaned("b", is_certain=True)) == [ConnectHosts(frozenset("b"))]
    job.hear(HostRefused("b", "no route to host"))
    actions = []
    while job.policy.deadline <= 111:
        actions = job.at(job.policy.deadline)
        if actions and isinstance(actions[0], ConnectHosts):
            job.hear(HostRefused("b", "no route to host"))
    assert actions == [TERM]
    assert job.now == 111
    assert job.policy.failure.what.splitlines() == [
        "the job had 2 of the 4 ranks of --min-np for the 100 s of --elastic-timeout",
        "    host b: no route to host",
    ]
    assert job.policy.status == 137
    assert len([text for text in job.said if "no route" in text]) == 1, "it is said once"


def test_a_newcomer_that_does_not_arrive_is_replaced():
    job = running(min_np=3, elastic_timeout=100.0)
    job.kill(1)
    job.at(1)
    job.meet()
    job.hear(RankStarted(4, 104))
    assert job.policy.deadline == 100
    assert job.at(100) == [EndProcesses(frozenset({4}), 0.0)]
    assert "a newcomer on a (pid 104) did not come to distrun.init() or elastic.run" in job.said[-1]
    job.exit(4, -9)
    assert started(job.at(120)) == [5]


# --- planned changes


def test_a_host_that_is_found_is_connected_to_and_its_ranks_join_together():
    job = running("a2", 2, max_np=4, discovers=True)
    assert job.hear(HostsFound({"a": 2, "b": 2})) == [ConnectHosts(frozenset("b"))]
    assert started(job.hear(HostReady("b"))) == [2, 3]
    assert job.arrive(3, now=10) == []
    assert job.arrive(2) == [PrepareMembers(1, frozenset({0, 1}), "2 ranks join")]
    assert job.begun(job.leave(0, 1)) == [0, 1, 2, 3]
    assert "restart" not in job.said[-1], "planned changes are free"


def test_a_newcomer_is_not_kept_waiting_for_another_for_long():
    job = running("a2", 2, max_np=4, discovers=True)
    job.hear(HostsFound({"a": 4}))
    assert job.arrive(3, now=10) == []
    job.hear(RankStarted(2, 102))
    assert job.policy.deadline == 10 + BATCH_TIMEOUT
    assert job.at(10 + BATCH_TIMEOUT) == [PrepareMembers(1, frozenset({0, 1}), "1 rank joins")]


def test_members_that_come_to_no_step_boundary_are_told_of_once_with_the_remedy():
    job = running("a2", 2, max_np=4, discovers=True)
    job.hear(HostsFound({"a": 4}))
    job.arrive(3, 2)
    assert job.policy.state is State.PREPARING
    said = len(job.said)
    assert job.at(BATCH_TIMEOUT) == []
    assert (len(job.said), job.policy.deadline) == (said, REMINDER)
    assert job.at(REMINDER) == []
    assert job.policy.deadline is None
    assert job.said[-1] == (
        "2 ranks join: waiting for rank 0 on a (pid 100) and 1 other, without a step boundary for 60 s; so that ranks "
        "can come and go, have the training function call state.advance() after each step"
    )
    assert job.begun(job.leave(0, 1)) == [0, 1, 2, 3]


def test_no_planned_change_before_all_are_enrolled():
    job = running("a2", 2, max_np=4, discovers=True, enrolled=False)
    assert job.hear(HostsFound({"a": 4})) == []
    job.hear(ProcessSaid(0, Enrolled([])))
    assert started(job.hear(ProcessSaid(1, Enrolled([])))) == [2, 3]


def test_the_job_does_not_grow_beyond_its_limit():
    assert started(running("a2", 2, max_np=3, discovers=True).hear(HostsFound({"a": 9, "b": 9}))) == [2]


def test_a_host_that_is_listed_no_more_is_released_at_a_step_boundary():
    job = running("a2b2", min_np=2, discovers=True)
    prepare = PrepareMembers(1, frozenset(range(4)), "2 ranks on b leave")
    assert job.hear(HostsFound({"a": 2})) == [prepare]
    assert job.leave(0, 1, 2) == []
    begin, end = job.leave(3)
    assert end == EndProcesses(frozenset({2, 3}), GRACE)
    assert isinstance(begin, BeginGeneration)
    assert job.places == "a0 a1"
    assert job.exit(2, -15) == []
    assert job.exit(3, -15) == [ReleaseHost("b")]
    assert job.hear(AgentGone("b", 0)) == []
    assert job.policy.state is State.RUNNING
    assert job.policy.failure_history == []


def test_planned_changes_count_where_that_is_asked_for():
    job = running("a2", 2, max_np=4, discovers=True, max_restarts=1, restart_window=None, counts_changes=True)
    job.hear(HostsFound({"a": 3}))
    job.arrive(2)
    assert job.begun(job.leave(0, 1)) == [0, 1, 2]
    job.meet()
    job.hear(HostsFound({"a": 4}))
    job.arrive(3)
    job.leave(0, 1, 2)
    assert job.policy.state is State.ENDING
    assert job.policy.failure.what == "1 rank joins; all 1 restarts are used up"


def test_a_host_is_exchanged_in_one_planned_change():
    job = running("a2b2", discovers=True)
    assert job.hear(HostsFound({"a": 2, "c": 2})) == [ConnectHosts(frozenset("c"))]
    assert started(job.hear(HostReady("c"))) == [4, 5]
    job.arrive(4)
    (prepare,) = job.arrive(5)
    assert prepare.reason == "2 ranks join and 2 ranks on b leave"
    job.leave(*range(4))
    assert job.places == "a0 a1 c0 c1"


def test_where_all_leave_the_last_one_stays_until_others_know_what_it_knows():
    job = running("a2", 2, min_np=1, discovers=True)
    job.hear(HostsFound({"b": 2}))
    job.hear(HostReady("b"))
    job.arrive(2, 3)
    job.leave(0, 1)
    assert job.places == "a0 b0"
    job.meet()
    assert job.policy.state is State.PREPARING
    job.leave(0, 2)
    assert sorted(job.places.split()) == ["b0", "b1"]


def test_ranks_on_a_host_that_is_gone_from_the_list_go_on_if_they_are_needed():
    job = running("a2b2", discovers=True)
    assert job.hear(HostsFound({"a": 2})) == []
    assert job.policy.state is State.RUNNING


def test_fewer_slots_of_a_host_are_a_planned_change_too():
    job = running("a4", min_np=2, discovers=True)
    (prepare,) = job.hear(HostsFound({"a": 3}))
    assert prepare.reason == "1 rank on a leaves"


def test_a_death_while_members_leave_is_a_regroup_of_those_that_are_left():
    job = running("a2b2", min_np=1, discovers=True)
    job.hear(HostsFound({"a": 2}))
    job.leave(0)
    job.kill(1, now=10)
    assert job.begun(job.at(11)) == [0, 3, 2], "the host is released by the next planned change"
    job.meet()
    assert [type(action) for action in job.at(11 + BATCH_TIMEOUT)] == [PrepareMembers]


def test_newcomers_for_whom_there_is_no_room_any_more_are_ended():
    job = running("a2b2", discovers=True)
    job.hear(HostsFound({"a": 2, "c": 2}))
    job.hear(HostReady("c"))
    assert job.hear(HostsFound({"a": 2, "b": 2, "c": 2})) == [EndProcesses(frozenset({4, 5}), 0.0)]


# --- spares


def test_spares_are_kept_activated_and_replaced():
    job = ready("a2b2", 4, spares=1)
    assert job.meet() == [StartSpares({4: "a", 5: "b"}, ("torch",))]
    for spare in (4, 5):
        job.hear(ProcessSaid(spare, Warm()))
    (activate,) = job.kill(3)
    assert isinstance(activate, StartNewcomers)
    assert activate.processes == {5}
    assert activate.expected.members[3].host == "b"
    job.at(1)
    assert job.begun(job.arrive(5)) == [0, 1, 2, 5]
    assert job.meet() == [StartSpares({6: "b"}, ("torch",))]


def test_a_script_that_never_enrols_has_spares_too():
    job = running("a2", 2, spares=2, enrolled=False)
    job.hear(ProcessSaid(0, Imported(["numpy"])))
    assert job.policy.deadline == SPARES_TIMEOUT
    assert job.at(SPARES_TIMEOUT) == [StartSpares({2: "a", 3: "a"}, ("numpy",))]
    job.kill(1)
    job.exit(0, 1, lost_peer=True)
    (begin,) = job.at(SPARES_TIMEOUT + 1)
    assert begin.start == {2, 3}, "which activates them with firm places"


def test_a_warm_spare_is_taken_first():
    job = running(spares=2)
    job.hear(ProcessSaid(5, Warm()))
    assert job.kill(1)[0].processes == {5}


def test_spares_that_fail_are_not_started_again_and_again():
    job = running(spares=1)
    assert job.kill(4) == [StartSpares({5: "a"}, ("torch",))]
    assert job.kill(5) == []
    assert job.at(job.policy.deadline) == [StartSpares({6: "a"}, ("torch",))]
    assert job.policy.state is State.RUNNING


def test_a_script_without_elastic_code_has_spares_once_it_trains():
    job = running("a2", 2, spares=2, enrolled=False)
    assert job.hear(ProcessSaid(0, Imported(["torch"], is_training=True))) == [
        StartSpares({2: "a", 3: "a"}, ("torch",))
    ]
    for spare in (2, 3):
        job.hear(ProcessSaid(spare, Warm()))
    assert job.kill(1) == [EndProcesses(frozenset({0}), GRACE)]
    job.exit(0, -15)
    (begin,) = job.at(job.policy.deadline)
    assert job.processes == [2, 3]
    assert begin.start == {2, 3}, "the spares, which are activated"
    assert job.hear(ProcessSaid(2, Imported(["torch"], is_training=True))) == [
        StartSpares({4: "a", 5: "a"}, ("torch",))
    ]


def test_spares_take_part_where_all_are_started_anew():
    job = running("a2", 2, spares=1)
    job.kill(0, 1)
    (begin,) = job.at(1)
    assert job.processes == [2, 3]
    assert begin.start == {3}, "the spare was activated already"


# --- the end


def test_when_all_have_finished_the_job_ends_with_status_0():
    job = running(spares=1)
    assert job.finish(0) == [EndProcesses(frozenset({4}), 0.0)]
    assert not job.policy.accepts_hosts
    job.finish(1)
    assert job.exit(4, -9) == []
    for process in (0, 1, 2):
        assert job.exit(process, 0) == []
    assert job.exit(3, 0) == [FinishAgents(GRACE)]
    job.hear(AgentGone("a", 0))
    assert job.policy.state is State.OVER
    assert (job.policy.status, job.policy.failure) == (0, None)


def test_a_failure_after_the_training_ends_the_job_as_any_other():
    job = running()
    job.finish(0)
    assert job.exit(1, 3) == [TERM]
    assert job.policy.status == 3


def test_a_failure_just_before_others_say_that_they_have_finished_counts():
    job = running()
    job.kill(3)
    assert job.finish(0) == [TERM]
    assert job.policy.status == 137


@pytest.mark.parametrize("enrolled", [True, False])
def test_ranks_that_exit_with_status_0_are_not_replaced(enrolled):
    job = running(enrolled=enrolled)
    for process in (2, 0, 3):
        assert job.exit(process, 0) == []
    assert job.exit(1, 0) == [FinishAgents(GRACE)]
    assert job.policy.status == 0


@pytest.mark.parametrize("generation", [1, 2])
def test_members_that_wait_to_meet_one_that_has_ended_well_learn_it_and_fail(generation):
    job = started_anew(generation)
    missing, other, _ = job.processes
    assert job.exit(missing, 0) == [TellDeparture(missing)]
    assert job.leave(other, reason="rank 0 exited with code 0") == [TERM]
    assert job.policy.failure == Failure(
        other, 1, "cannot go on, since another rank has ended already: rank 0 exited with code 0"
    )


def test_members_that_have_met_one_that_has_ended_well_do_not_learn_it():
    assert running("a3", 3).exit(2, 0) == []


def started_anew(generation):
    """Return a job whose generation of three ranks has begun and not met."""
    job = ready("a3", 3)
    while job.generation.number < generation:
        for process in job.processes:
            job.kill(process)
        job.at(job.now + GATHER_TIME)
    return job


def test_who_waits_for_others_that_have_ended_well_fails():
    job = running()
    job.exit(2, 0)
    assert job.leave(1, reason="rank 2 has left") == [TERM]
    assert job.policy.failure.what == "cannot go on, since another rank has ended already: rank 2 has left"
    job = running()
    job.leave(1, reason="rank 2 has left")
    assert job.exit(2, 0) == []
    assert job.at(job.policy.deadline) == [TERM]
    assert job.policy.failure.what == "has ended well, while others wait for the next generation"
    assert job.policy.status == 1


@pytest.mark.parametrize("enrolled", [True, False])
def test_a_rank_that_lost_a_peer_at_the_end_waits_for_the_root_cause(enrolled):
    job = running(enrolled=enrolled)
    if enrolled:
        job.leave(1, reason="rank 3 has left")
    else:
        job.exit(1, 1, lost_peer=True)
    assert job.exit(0, 0) == []
    assert job.kill(3) == [TERM]
    assert (job.policy.failure.rank, job.policy.status) == (3, 137)


def test_the_last_two_of_a_job_one_has_ended_well_and_the_other_lost_it():
    job = running("a2", 2, enrolled=False)
    job.exit(1, 1, lost_peer=True)
    assert job.exit(0, 0) == [FinishAgents(GRACE)]
    assert job.policy.status == 1


NOT_ANEW = "was killed by SIGKILL; nothing is restarted, since rank 0 on a (pid 100) has come to the end of its work"


def test_nothing_is_started_anew_when_a_rank_is_lost_while_another_has_come_to_its_end():
    job = running(enrolled=False)
    job.hear(ProcessSaid(0, Ending()))
    assert job.kill(1) == [EndProcesses(frozenset({2, 3}), GRACE)]
    for process in (2, 3):
        job.exit(process, -15)
    assert job.at(job.now + 1) == []  # what it exits with decides
    assert job.exit(0, 0) == [FinishAgents(GRACE)]
    assert (job.policy.failure.what, job.policy.status) == (NOT_ANEW, 137)


def test_a_rank_that_takes_long_to_exit_at_its_end_decides_too():
    job = running("a2", 2, enrolled=False)
    job.hear(ProcessSaid(0, Ending()))
    assert job.kill(1) == []
    while job.policy.state is State.REGROUPING:
        actions = job.at(job.policy.deadline)
    assert (actions, job.policy.failure.what) == ([TERM], NOT_ANEW)


def test_a_rank_that_ends_itself_with_a_status_at_its_end_is_started_anew_with_the_others():
    job = running("a2", 2, enrolled=False)
    job.hear(ProcessSaid(0, Ending()))
    assert job.kill(1) == []
    job.exit(0, 3)
    assert isinstance(job.at(job.policy.deadline)[0], BeginGeneration)
    job = running("a2", 2, enrolled=False)
    job.hear(ProcessSaid(0, Ending()))
    job.hear(ProcessSaid(1, Ending()))
    assert job.exit(1, 3) == [EndProcesses(frozenset({0}), GRACE)]
    job.exit(0, 3)
    assert isinstance(job.at(job.policy.deadline)[0], BeginGeneration)


def test_a_rank_that_has_ended_well_before_it_heard_that_it_should_end_was_at_its_end():
    job = running("a2", 2, enrolled=False)
    assert job.kill(1) == [EndProcesses(frozenset({0}), GRACE)]
    assert job.hear(RankExited(0, RankExit(0, unasked=True))) == [FinishAgents(GRACE)]
    assert (job.policy.failure.what, job.policy.status) == (NOT_ANEW, 137)
    job = running("a2", 2, enrolled=False)
    job.kill(1)
    job.exit(0, 0)  # it has saved its state, being told to end
    assert isinstance(job.at(job.policy.deadline)[0], BeginGeneration)


def test_the_agent_of_a_host_whose_ranks_have_ended_well_may_be_lost():
    job = running("a2b2")
    job.finish(0)
    job.exit(2, 0)
    job.exit(3, 0)
    assert job.hear(lost("b")) == [CleanUpAfter("b")]
    assert job.hear(lost("a"))[0] == CleanUpAfter("a")
    assert job.policy.status == 137


def preparing():
    job = running("a2b2", min_np=2, discovers=True)
    job.hear(HostsFound({"a": 2}))
    return job


def regrouping():
    job = running()
    job.kill(1)
    return job


def settling():
    job = running()
    job.leave(1)
    return job


@pytest.mark.parametrize("state", [connecting, running, preparing, settling, regrouping])
def test_a_signal_ends_the_job_in_any_state(state):
    job = state()
    actions = job.hear(SignalReceived(signal.SIGINT))
    if state is connecting:
        assert job.policy.state is State.OVER
    else:
        assert actions == [SignalRanks(signal.SIGINT)]
        assert job.policy.state is State.ENDING
        assert job.policy.deadline == job.now + GRACE
        (killed,) = job.at(GRACE)
        assert killed == SignalRanks(signal.SIGKILL, killed.late)
        assert len(killed.late) == 4
    assert (job.policy.status, job.policy.failure) == (130, None)


@pytest.mark.parametrize("state", [running, preparing, settling, regrouping])
def test_other_signals_and_time_limits_in_any_state(state):
    job = state()
    assert job.hear(SignalReceived(signal.SIGUSR1)) == [SignalRanks(signal.SIGUSR1)]
    assert job.hear(TimeUp(5.0)) == [TERM]
    assert job.policy.status == 124


def test_while_a_job_ends_nothing_is_started():
    job = regrouping()
    job.hear(SignalReceived(signal.SIGTERM))
    for process in (0, 2, 3):
        assert job.exit(process, -15) == []
    assert job.hear(RankStarted(4, 104)) == []
    assert job.hear(HostsFound({"b": 4})) == []
    assert job.exit(4, -15) == [FinishAgents(GRACE)]


def test_processes_have_names_also_when_they_are_gone():
    job = running(spares=1)
    assert job.policy.name(4) == "a spare on a"
    job.kill(1)
    assert job.policy.name(4) == "a newcomer on a"
    assert job.policy.name(1) == "rank 1 on a"
