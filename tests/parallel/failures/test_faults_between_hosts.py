"""A rank of another host is stopped, does not come or dies while all gather: all ranks learn it, and none hangs."""

from __future__ import annotations

import re
import signal

import pytest
from session.tiers import one_in_gate
from without_launcher.unlaunched_ranks import listening_ports, ready

GATE = pytest.mark.gate


@GATE
@pytest.mark.parametrize("victim", one_in_gate(1, 0))
def test_a_stopped_rank_is_a_stall_and_the_job_goes_on(ranks, victim):
    everybody = ready(ranks("faults", "working", "-1", hosts=(1, 1), DISTRUN_STALL_WARNING="0.3"))
    for rank in everybody:
        rank.stdout.wait_for("big: done\n")
    everybody[victim].signal(signal.SIGSTOP)
    if victim == 1:
        everybody[0].stderr.wait_for("rank 1 (process")
    other = everybody[1 - victim].stdout
    before = other.text.count("done\n")
    everybody[victim].signal(signal.SIGCONT)
    other.wait_for("done\n", times=before + 5)
    assert "Error" not in other.text
    everybody[0].signal(signal.SIGKILL)
    assert everybody[1].end() == 0
    assert everybody[0].end() == -signal.SIGKILL


# Starting -------------------------------------------------------------------------------------------------------------


@GATE
@pytest.mark.parametrize(
    ("absent", "said"),
    [(1, r"rank 1 of 2 did not call init\(\) within 0.5 s at 127"), (0, r"rank 1 did not find rank 0 within 0.5 s: ")],
)
def test_a_rank_that_never_comes_is_named_in_time(ranks, absent, said):
    """That those which have come are all told is shown in tests/unit/runtime/transport/rendezvous."""
    everybody = ranks("late", str(absent), hosts=(1, 1), DISTRUN_START_TIMEOUT="0.5")
    assert everybody[1 - absent].end() == 1
    assert re.search(f"BootstrapError: .*{said}", everybody[1 - absent].stderr.text), everybody[1 - absent].stderr.text
    everybody[absent].signal(signal.SIGKILL)


@GATE
@pytest.mark.parametrize("victim", one_in_gate(1, 2))
def test_a_rank_that_dies_while_the_others_gather_is_named_where_one_connects_for_its_host(ranks, victim):
    everybody = ranks("late", "3", hosts=(1, 3), DISTRUN_FAN_OUT="1")
    for rank in everybody[1:3]:
        listening_ports(rank.pid)  # it has met rank 0, or the rank that connects with rank 0 for it
    everybody[victim].signal(signal.SIGKILL)
    pid = everybody[victim].pid
    assert everybody[0].end() == 1
    said = everybody[0].stderr.text
    assert f"BootstrapError: rank {victim} (process {pid} on host host1) came and ended again before all" in said, said
    assert everybody[3 - victim].end() == 1
    said = everybody[3 - victim].stderr.text
    assert re.search(rf"BootstrapError: .*process {pid}\b.* ended .*before all ranks had", said), said
    everybody[3].tell("now")
    everybody[3].signal(signal.SIGKILL)
