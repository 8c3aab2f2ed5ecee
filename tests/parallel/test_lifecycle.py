"""Joining and leaving a job, as often as one likes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from session.tiers import one_in_gate


@pytest.mark.gate
@pytest.mark.parametrize(
    "job", [*one_in_gate("distrun-2", "distrun-4"), *one_in_gate("hosts-1+2", "hosts-1+1+1")], indirect=True
)
def test_init_and_shutdown_twenty_times_with_forks_and_threads(job):
    job.run_alone("lifecycle")


@pytest.mark.gate
@pytest.mark.parametrize("job", ["hosts-1+1"], indirect=True)
def test_every_connection_between_hosts_gives_up_after_the_keepalive(job):
    job.run_alone("keepalive", DISTRUN_KEEPALIVE="7")


@pytest.mark.gate
def test_a_plain_script_is_a_world_of_one():
    program = (
        "import distrun, numpy as np; distrun.init(); assert distrun.size() == 1; "
        "assert distrun.allreduce(np.ones(3)).tolist() == [1.0] * 3; print(distrun.allgather_object('me'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "['me']\n"


@pytest.mark.gate
@pytest.mark.parametrize("layout", [{"size": 2}, {"hosts": (1, 2)}], ids=["one host", "two hosts"])
def test_an_idle_rank_costs_nothing(ranks, layout):
    everybody = ranks("idle", **layout)
    for rank in everybody:
        rank.stdout.wait_for("idle")
    for rank in ranks("missing"):  # the time in which they are watched is the life of another job
        assert rank.end() == 0
    for rank in everybody:
        rank.tell("enough")
    for rank in everybody:
        assert rank.end() == 0, rank.stderr.text
        cpu, switches = rank.stdout.text.split()[-2:]
        assert float(cpu) <= 0.01, f"an idle rank used {cpu} s of processor time"
        assert int(switches) <= 10, f"an idle rank woke up {switches} times"


@pytest.mark.gate
@pytest.mark.parametrize(
    ("present", "said"), [("0", r"ranks \[1\] of 2 did not call init\(\)"), ("1", r"rank 0 did not call init\(\)")]
)
def test_a_rank_that_never_comes_is_named_in_time(ranks, present, said):
    two = {"DISTRUN_SIZE": "2", "DISTRUN_LOCAL_SIZE": "2", "DISTRUN_START_TIMEOUT": "0.5"}
    (rank,) = ranks("missing", size=1, DISTRUN_RANK=present, DISTRUN_LOCAL_RANK=present, **two)
    assert rank.end() == 1
    assert re.search(f"BootstrapError: .*{said} within 0.5 s", rank.stderr.text)
