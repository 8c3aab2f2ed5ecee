"""A rank dies, in each mode that several hosts may work in: whatever travels, whoever passes messages on.

Who is named for which death is shown by the histories in tests/unit/runtime/engine/test_deaths.py.
"""

from __future__ import annotations

import re
import signal

import pytest
from without_launcher.unlaunched_ranks import check_a_kill, named, ready

GATE = pytest.mark.gate


RELAYED = {"DISTRUN_FAN_OUT": "1"}
"""Leaders of hosts pass messages on."""


@pytest.mark.parametrize(
    ("scenario", "hosts", "victim", "environ"),
    [
        pytest.param("waiting", (2, 2), 0, {}, marks=GATE),
        pytest.param("working", (1, 2), 2, {}, marks=GATE),
        *(("waiting", (1, 1, 1), 1, {}), ("working", (2, 2), 3, {})),
        *(("working in a set", (2, 2), victim, {}) for victim in (1, 3)),
        pytest.param("waiting", (1, 2, 1), 3, RELAYED, marks=GATE),
        *(("waiting", (1, 2, 1), 0, RELAYED), ("working", (1, 2, 1), 2, RELAYED)),
        ("working", (1, 2, 1), 1, {**RELAYED, "DISTRUN_WIRE_DTYPE": "int8"}),
        ("working", (2, 2), 3, {"DISTRUN_WIRE_DTYPE": "int4"}),
        *(("working", (1, 1, 1), 2, {"DISTRUN_ALGORITHM": name}) for name in ("direct", "ring", "tree")),
        ("working", (1, 1, 1), 2, {"DISTRUN_ALGORITHM": "halving-doubling"}),
    ],
)
def test_a_killed_rank_is_named_on_every_host(ranks, scenario, hosts, victim, environ):
    check_a_kill(ranks, scenario, hosts, victim, **environ)


@pytest.mark.parametrize(
    ("how", "hosts", "fan_out", "victim", "host", "busy"),
    [
        # the leader of the victim's host is busy
        pytest.param("is killed", (1, 3, 1), "1", 3, 1, (1, 2), marks=GATE),
        # there is no tree, but rank 0 speaks for its host
        pytest.param("leaves", (2, 1), "", 1, 0, (0,), marks=GATE),
        ("leaves", (1, 1, 1, 1), "2", 3, 3, (0, 1)),  # all leaders on the way
        ("is killed", (1, 1, 1, 1), "1", 1, 1, (0, 2)),  # a leader itself, and all next to it
    ],
)
def test_ranks_hear_of_it_through_others_that_are_busy(ranks, how, hosts, fan_out, victim, host, busy):
    scenario = ("others are busy", str(victim), ",".join(map(str, busy)))
    everybody = ready(ranks("faults", *scenario, hosts=hosts, DISTRUN_FAN_OUT=fan_out))
    if how == "leaves":
        everybody[victim].tell("go")
    else:
        everybody[victim].signal(signal.SIGKILL)
    everybody[victim].process.wait()
    others = [rank for place, rank in enumerate(everybody) if place not in (victim, *busy)]
    for rank in others:
        rank.stdout.wait_for("JobAbortedError")
    for place in busy:
        assert "Error" not in everybody[place].stdout.text
        everybody[place].tell("go")
    for place, rank in enumerate(everybody):
        if place != victim:
            assert rank.end() == 0, rank.stderr.text
            fate = "has left" if how == "leaves" else "(was killed by SIGKILL|is gone: its connection)"
            said = rf"first: JobAbortedError: .*{named(victim, everybody[victim].pid, host)} {fate}"
            assert re.search(said, rank.stdout.text), rank.stdout.text


@pytest.mark.parametrize(
    ("hosts", "fan_out", "victim", "host", "busy"), [((1, 2, 1), "1", 2, 1, (0, 1)), ((2, 1), "", 2, 1, (0,))]
)
def test_ranks_of_a_set_hear_that_one_has_left_though_their_leader_is_busy(ranks, hosts, fan_out, victim, host, busy):
    scenario = ("others are busy", str(victim), ",".join(map(str, busy)), "in a set")
    everybody = ready(ranks("faults", *scenario, hosts=hosts, DISTRUN_FAN_OUT=fan_out))
    for rank in everybody:
        rank.stdout.wait_for("ready\nready\n")
    everybody[victim].tell("go")
    (other,) = [rank for place, rank in enumerate(everybody) if place not in (victim, *busy)]
    other.stdout.wait_for("JobAbortedError")
    for place in busy:
        everybody[place].tell("go")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
    said = rf"first: JobAbortedError: .*{named(victim, everybody[victim].pid, host)} has left"
    assert re.search(said, other.stdout.text), other.stdout.text
