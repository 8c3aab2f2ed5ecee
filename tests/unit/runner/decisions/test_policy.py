"""The decider, fed with histories of events: no process, no clock but the one in the table."""

import signal

import pytest

from distrun.runner.decisions.actions import (
    CleanUpAfter,
    FinishAgents,
    KillAgents,
    MoveServer,
    RestartServer,
    SignalRanks,
    StartRanks,
    TellDeparture,
)
from distrun.runner.decisions.events import (
    AgentGone,
    AgentLost,
    HostReady,
    HostRefused,
    HostStep,
    OutputClosed,
    Printed,
    RankExited,
    RankNotStarted,
    RankStarted,
    SignalReceived,
    TimeUp,
)
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import KILL_TIMEOUT, LEAVE_TIMEOUT, ROOT_CAUSE_TIMEOUT, Policy, State
from distrun.runner.job.options import JobOptions
from distrun.runner.protocol.exits import RankExit

GRACE = 5.0
TERM, KILL, INT = SignalRanks(signal.SIGTERM), SignalRanks(signal.SIGKILL), SignalRanks(signal.SIGINT)
LATE = SignalRanks(signal.SIGKILL, (1,))  # for rank 1, when the grace is over
FULL = OutputClosed("stdout cannot be written: No space left on device")
BYE = AgentGone("here", 0)
TICK = None  # only time passes


def started(hosts, **options):
    """A job whose ranks, one on each of these hosts, have started."""
    policy = Policy(dict(enumerate(hosts)), GRACE, 60.0, 0.0, **options)
    for rank in range(len(hosts)):
        assert policy.handle(RankStarted(rank, 100 + rank), 0) == []
    return policy


def ended(rank, code=0, lost_peer=False, **how):
    return RankExited(rank, RankExit(code, **how), lost_peer)


# name: (steps of (time, event, actions expected) until the agent leaves, exit status, rank of the failure)
HISTORIES = {
    "all ranks end well": ([(1, ended(0), []), (2, ended(1), [FinishAgents(GRACE)])], 0, None),
    "ranks that end before they join: others learn of the first": (
        [(1, ended(1, has_departed=True), [TellDeparture(1)]), (2, ended(0, has_departed=True), [FinishAgents(GRACE)])],
        0,
        None,
    ),
    "a rank fails and its peer obeys": ([(1, ended(1, 42), [TERM]), (2, ended(0, -15), [FinishAgents(4.0)])], 42, 1),
    "a rank is killed and its peer is stubborn": (
        [
            (1, ended(0, -9), [TERM]),
            (6, TICK, [LATE]),
            (6, ended(1, -9), [FinishAgents(0.0)]),
        ],
        137,
        0,
    ),
    "a later failure is not reported": ([(1, ended(0, 3), [TERM]), (1, ended(1, 4), [FinishAgents(GRACE)])], 3, 0),
    "the last rank fails": ([(1, ended(0), []), (2, ended(1, 5), [FinishAgents(GRACE)])], 5, 1),
    "a rank that lost its peer waits for the root cause": (
        [(1, ended(0, 1, True), []), (1.5, ended(1, 9), [FinishAgents(GRACE)])],
        9,
        1,
    ),
    "a rank that lost its peer is reported if the root cause does not end": (
        [
            (1, ended(0, 1, True), []),
            (1 + ROOT_CAUSE_TIMEOUT, TICK, [TERM]),
            (3, ended(1, -15), [FinishAgents(GRACE - 1)]),
        ],
        1,
        0,
    ),
    "of ranks that lost a peer alone the first is reported": (
        [(1, ended(1, 1, True), []), (1.1, ended(0, 1, True), [FinishAgents(GRACE)])],
        1,
        1,
    ),
    "a rank that lost its peer and a peer that ended well": (
        [(1, ended(1, 1, True), []), (1.1, ended(0), [FinishAgents(GRACE)])],
        1,
        1,
    ),
    "Ctrl-C": (
        [
            (1, SignalReceived(signal.SIGINT), [INT]),
            (1.1, ended(0, 1), []),
            (1.2, ended(1, -2), [FinishAgents(pytest.approx(4.8))]),
        ],
        130,
        None,
    ),
    "a scheduler signals all launchers, and another's signal is heard of first": (
        [
            (1, SignalReceived(signal.SIGTERM, "there"), [TERM]),
            (1, SignalReceived(signal.SIGTERM), []),
            (2, SignalReceived(signal.SIGINT, "there"), []),
            (3, SignalReceived(signal.SIGTERM), [KILL]),
            (3, ended(0, -9), []),
            (3, ended(1, -9), [FinishAgents(0.0)]),
        ],
        143,
        None,
    ),
    "a scheduler signals all launchers, and ours is first": (
        [
            (1, SignalReceived(signal.SIGTERM), [TERM]),
            (1, SignalReceived(signal.SIGTERM, "there"), []),
            (2, ended(0, -15), []),
            (2, ended(1, -15), [FinishAgents(4.0)]),
        ],
        143,
        None,
    ),
    "SIGTERM, and ranks that end well": (
        [(1, SignalReceived(signal.SIGTERM), [TERM]), (1, ended(0), []), (1, ended(1), [FinishAgents(GRACE)])],
        143,
        None,
    ),
    "a second Ctrl-C kills": (
        [
            (1, SignalReceived(signal.SIGINT), [INT]),
            (2, SignalReceived(signal.SIGINT), [KILL]),
            (2, ended(0, -9), []),
            (2, ended(1, -9), [FinishAgents(0.0)]),
        ],
        130,
        None,
    ),
    "Ctrl-C while a failure is dealt with kills, and the failure stays the reported one": (
        [(1, ended(0, 42), [TERM]), (2, SignalReceived(signal.SIGINT), [KILL]), (2, ended(1, -9), [FinishAgents(0.0)])],
        42,
        0,
    ),
    "Ctrl-C while leftovers have their grace": (
        [
            (1, ended(0), []),
            (1, ended(1), [FinishAgents(GRACE)]),
            (2, SignalReceived(signal.SIGINT), [FinishAgents(0.0)]),
        ],
        0,
        None,
    ),
    "SIGUSR1 is only forwarded": (
        [
            (1, SignalReceived(signal.SIGUSR1), [SignalRanks(signal.SIGUSR1)]),
            (2, ended(0), []),
            (2, ended(1), [FinishAgents(GRACE)]),
        ],
        0,
        None,
    ),
    "nobody reads the output any more": (
        [(1, OutputClosed(), [TERM]), (1, ended(0, -15), []), (1, ended(1, -15), [FinishAgents(GRACE)])],
        141,
        None,
    ),
    "the disk of the output is full": (
        [(1, FULL, [TERM]), (1, ended(0, -15), []), (1, ended(1, -15), [FinishAgents(GRACE)])],
        1,
        None,
    ),
    "the disk of the output is full when the ranks have ended": (
        [(1, ended(0), []), (2, ended(1), [FinishAgents(GRACE)]), (2, FULL, [])],
        1,
        None,
    ),
    "the printer dies": (
        [(1, Printed(), [TERM]), (1, ended(0, -15), []), (1, ended(1, -15), [FinishAgents(GRACE)])],
        1,
        None,
    ),
    "a command that cannot be run": (
        [(1, RankNotStarted(0, 127, "gone"), [TERM]), (1, RankNotStarted(1, 127, "gone"), [FinishAgents(GRACE)])],
        127,
        0,
    ),
    "the agent is lost": (
        [(1, AgentLost("here", "the agent was killed", 137), [CleanUpAfter("here"), FinishAgents(5.0)])],
        137,
        None,
    ),
    "the agent is lost while a failure is dealt with": (
        [(1, ended(0, 42), [TERM]), (2, AgentLost("here", "killed", 137), [CleanUpAfter("here"), FinishAgents(4.0)])],
        42,
        0,
    ),
    "a rank that even SIGKILL does not end": (
        [
            (1, ended(0, 42), [TERM]),
            (6, TICK, [LATE]),
            (6 + KILL_TIMEOUT, TICK, [FinishAgents(0.0)]),
            (6 + KILL_TIMEOUT + LEAVE_TIMEOUT, TICK, [KillAgents()]),
        ],
        42,
        0,
    ),
}


# Two ranks and the servers 2 and 3, one of which may be started again.
WITH_SERVERS = {
    "the servers end when all ranks have": (
        [(1, ended(0), []), (2, ended(1), [TERM]), (2, ended(2, -15), []), (2, ended(3, -15), [FinishAgents(GRACE)])],
        0,
        None,
    ),
    "a server that is killed is restarted and the next one is the failure": (
        [
            (1, ended(3, -9), [RestartServer(3, "was killed by SIGKILL", 1)]),
            (1, RankStarted(3, 200), []),
            (2, ended(2, -9), [TERM]),
            (3, ended(0, -15), []),
            (3, ended(1, -15), []),
            (3, ended(3, -15), [FinishAgents(GRACE - 1)]),
        ],
        137,
        2,
    ),
    "a server is not restarted when a rank has failed": (
        [
            (1, ended(0, 5), [TERM]),
            (1, ended(2, -9), []),
            (1, ended(1, -15), []),
            (1, ended(3, -15), [FinishAgents(GRACE)]),
        ],
        5,
        0,
    ),
}


@pytest.mark.parametrize("name", HISTORIES | WITH_SERVERS)
def test_a_history_leads_to_the_expected_actions_and_end(name):
    steps, status, failed = (HISTORIES | WITH_SERVERS)[name]
    servers = (2, 3) if name in WITH_SERVERS else ()
    policy = started(["here"] * (2 + len(servers)), servers=servers, server_restarts=len(servers) // 2)
    for now, event, expected in steps:
        actions = policy.tick(now) if event is TICK else policy.handle(event, now)
        assert actions == expected, (now, event)
    if policy.state is State.FINISHING:
        assert policy.handle(BYE, now) == []
    assert policy.state is State.OVER
    assert policy.status == status
    assert (policy.failure.rank if policy.failure else None) == failed


def test_ranks_that_do_not_start_in_time_are_named():
    policy = Policy({0: "here", 1: "here", 2: "here"}, GRACE, 60.0, 0)
    policy.handle(RankStarted(1, 101), 1)
    assert policy.deadline == 60
    assert policy.tick(59) == []
    assert policy.tick(60) == [TERM]
    assert policy.failure.what == "ranks 0, 2 did not start within 60 s"


def test_an_idle_job_has_no_deadline_to_wake_up_for():
    assert started(["here"]).deadline is None


def test_without_grace_ranks_are_killed_at_once():
    assert Policy({0: "here", 1: "here"}, 0.0, 60.0, 0).handle(ended(0, 1), 1) == [KILL]


def test_a_lost_agent_ends_the_ranks_of_the_other_hosts():
    policy = Policy({0: "a", 1: "b"}, GRACE, 60.0, 0)
    assert policy.handle(AgentLost("a", "gone"), 1) == [CleanUpAfter("a"), TERM]
    assert policy.handle(ended(1, -15), 2) == [FinishAgents(4.0)]
    assert policy.state is State.FINISHING
    policy.handle(AgentGone("b", 0), 3)
    assert policy.state is State.OVER


def connecting(*remote):
    """A job of a rank here, and one on each of these hosts, that are yet to be connected to."""
    return Policy(dict(enumerate(["here", *remote])), GRACE, 60.0, 0, remote)


def test_ranks_start_when_every_host_is_ready():
    policy = connecting("a", "b")
    assert policy.handle(HostReady("b"), 1) == []
    assert policy.handle(HostReady("a"), 2) == [StartRanks()]
    assert policy.state is State.RUNNING
    assert policy.deadline == 60


def test_what_outlives_the_ranks_has_less_time_than_ranks_to_end():
    policy = Policy({0: "here"}, JobOptions().grace, 60.0, 0.0)
    policy.handle(RankStarted(0, 100), 0)
    assert policy.handle(ended(0), 1) == [FinishAgents(5.0)]
    policy = Policy({0: "here", 1: "here"}, JobOptions().grace, 60.0, 0.0)
    assert policy.handle(ended(0, 1), 1) == [TERM]
    assert policy.deadline == 1 + 30.0


def test_all_hosts_that_refuse_are_reported_and_the_others_are_released():
    policy = connecting("a", "b", "c")
    assert policy.handle(HostRefused("a", "no route"), 1) == []
    assert policy.handle(HostReady("b"), 1) == []
    assert policy.handle(HostRefused("c", "no key"), 2) == [FinishAgents(0.0)]
    assert policy.failure.what.splitlines()[1:] == ["    a: no route", "    c: no key"]
    assert policy.status == 2
    policy.handle(AgentGone("b", 0), 3)
    assert policy.state is State.FINISHING
    policy.handle(BYE, 3)
    assert policy.state is State.OVER


def test_hosts_that_do_not_answer_in_time_are_named_with_the_step_that_they_have_come_to():
    policy = connecting("a", "b", "c")
    policy.handle(HostStep("b", "logging in as me"), 1)
    policy.handle(HostReady("b"), 1)
    policy.handle(HostStep("a", "connecting to 10.0.0.1 port 22"), 1)
    policy.handle(HostStep("a", "logging in as me"), 2)
    assert policy.tick(60) == [FinishAgents(0.0)]
    assert policy.failure.what.splitlines() == [
        "2 hosts cannot be used, so no rank was started:",
        "    a: logging in as me took longer than the 60 s of --start-timeout: allow more, or see what "
        "'distrun doctor -H a' says",
        "    c: its turn did not come within the 60 s of --start-timeout: allow more, or see what "
        "'distrun doctor -H c' says",
    ]
    assert policy.handle(HostReady("a"), 61) == []  # too late


def test_a_signal_while_connecting_waits_for_nobody():
    policy = connecting("a", "b")
    assert policy.handle(SignalReceived(signal.SIGUSR1), 1) == []
    policy.handle(HostReady("b"), 1)
    assert policy.handle(SignalReceived(signal.SIGINT), 2) == [FinishAgents(0.0)]
    policy.handle(AgentGone("b", 0), 2)
    policy.handle(BYE, 2)
    assert policy.state is State.OVER
    assert (policy.status, policy.failure) == (130, None)


def test_an_agent_lost_while_others_are_connected_to_is_a_refusal():
    policy = connecting("a", "b")
    policy.handle(HostReady("b"), 1)
    policy.handle(AgentLost("b", "the agent on b was killed", 137), 2)
    assert policy.handle(HostReady("a"), 3) == [FinishAgents(0.0)]
    assert "host b cannot be used" in policy.failure.what


def test_a_printer_that_dies_while_connecting_ends_the_launch():
    policy = connecting("a")
    assert policy.handle(Printed(), 1) == [FinishAgents(0.0)]
    assert policy.status == 1


def test_a_job_that_takes_too_long_is_ended_with_the_status_of_timeout():
    policy = started(["here"])
    assert policy.handle(TimeUp(30), 30) == [TERM]
    assert policy.status == 124
    assert "longer than the 30 s of --timeout" in policy.failure.what


def test_time_that_is_up_changes_nothing_about_a_job_that_ends_anyway():
    policy = Policy({0: "here"}, GRACE, 60.0, 0)
    policy.handle(ended(0, 0), 1)
    assert policy.handle(TimeUp(30), 30) == []
    assert policy.status == 0


def test_a_job_is_over_when_only_those_are_left_that_never_end():
    policy = started(["here"] * 3, servers=(0, 2))
    assert policy.handle(ended(1), 1.0) == [TERM]
    assert policy.handle(ended(0, -15), 2.0) == []
    assert policy.handle(ended(2, -15), 2.0) == [FinishAgents(4.0)]
    policy.handle(BYE, 2.0)
    assert (policy.state, policy.status, policy.failure) == (State.OVER, 0, None)


def test_one_that_should_never_end_may_do_so_and_may_fail():
    policy = started(["here"] * 3, servers=(0, 2))
    assert policy.handle(ended(0), 1.0) == []
    assert policy.handle(ended(2, 7), 1.0) == [TERM]
    assert policy.status == 7


def served_elsewhere(restarts, refuges=("a", "b", "c")):
    """Two ranks on a, a server on b, two on c."""
    return started("aabcc", servers={2, 3, 4}, server_restarts=restarts, refuges=refuges)


def test_servers_of_a_host_that_is_lost_move_to_hosts_without_ranks_first():
    policy = served_elsewhere(5)
    assert policy.handle(AgentLost("c", "c is gone", 1), 1) == [
        CleanUpAfter("c"),
        MoveServer(3, "b", "c is gone", 1),
        MoveServer(4, "b", "c is gone", 2),
    ]
    assert policy.handle(ended(3, -9), 2) == [RestartServer(3, "was killed by SIGKILL", 3)]
    assert policy.handle(AgentLost("b", "b is gone", 1), 3) == [
        CleanUpAfter("b"),
        TERM,
    ]  # six restarts would be needed, and five are allowed
    assert policy.failure == Failure(None, 1, "b is gone")


def test_servers_move_beside_ranks_if_no_other_host_is_left():
    policy = served_elsewhere(9)
    policy.handle(AgentLost("c", "c is gone", 1), 1)
    moved = policy.handle(AgentLost("b", "b is gone", 1), 2)
    assert [(move.number, move.host) for move in moved[1:]] == [(2, "a"), (3, "a"), (4, "a")]
    assert policy.handle(AgentLost("a", "a is gone", 1), 3)[0] == CleanUpAfter("a")
    assert policy.failure == Failure(None, 1, "a is gone")


def test_servers_move_to_hosts_that_have_ports_for_them():
    policy = served_elsewhere(5, refuges=["a"])
    assert policy.handle(AgentLost("b", "b is gone", 1), 1)[1:] == [MoveServer(2, "a", "b is gone", 1)]


@pytest.mark.parametrize("lost", ["a", "c"])
def test_a_host_with_ranks_or_servers_without_copies_ends_the_job(lost):
    policy = served_elsewhere(5, "abc" if lost == "a" else "")
    assert TERM in policy.handle(AgentLost(lost, "it is gone", 1), 1)
    assert policy.failure == Failure(None, 1, "it is gone")
