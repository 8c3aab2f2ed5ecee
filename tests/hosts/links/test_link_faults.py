"""The network between hosts fails: one clear sentence, the right exit status, and nothing left on either side."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from machines.rank_programs import COUNTING, REDUCING, WAITING
from running_distrun import DEADLINE

LATE = str(Path(__file__).parents[2] / "parallel" / "programs" / "late.py")
CHECKING = COUNTING.format(elements=4_000_000, pause=0)
EXCHANGING = """
import numpy as np, distrun
from distrun.runtime.collectives.point_to_point import messages
distrun.init()
messages.prepare()
me, size = distrun.rank(), distrun.size()
other = 2 * size - 3 - me
mine, theirs = np.empty(20_000_000, np.uint8), np.empty(20_000_000, np.uint8)  # both are nearly always under way
number = 0
while other < size:  # the last two; another one waits
    number = (number + 1) % 100
    mine[:] = number + me
    sent = messages.send(mine.data, other)
    messages.receive(theirs.data, [other]).wait()
    sent.wait()
    assert (theirs == number + other).all()
    print("step", number, flush=True)
distrun.barrier()
"""
IDLE = """
import sys, numpy as np, distrun
distrun.init()
distrun.barrier()
print("idle", flush=True)
if distrun.rank() == 0: sys.stdin.readline()
for number in range(100):
    assert (distrun.allreduce(np.full(1 << number % 20, number), op=distrun.Sum) == 2 * number).all()
print("right", flush=True)
"""
STARTING = """
import os, time, distrun
if os.environ["RANK"] == "1":
    print("going", flush=True)
    time.sleep(1000)
print("going", flush=True)
distrun.init()
"""


@contextmanager
def blocked_path(host, other):
    """Drop packets from `host` to `other` meanwhile; the other machines still receive from both."""
    for address in (other.address, other.address6):
        astray = ("lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
        host.call("ip", "neigh", "replace", address, *astray, check=False)
    try:
        yield
    finally:
        for address in (other.address, other.address6):
            host.call("ip", "neigh", "del", address, "dev", "eth0", check=False)


def reports(job):
    """Return the sentences in which the launcher says what went wrong, without what ranks were doing meanwhile."""
    lines = job.stderr.data.decode().splitlines()
    return [
        line for line in lines if line.startswith("distrun: ") and not re.match(r"distrun: rank \d+ had been ", line)
    ]


@pytest.mark.parametrize(
    ("code", "which", "options"),
    [
        pytest.param(REDUCING, "beta", (), marks=pytest.mark.gate),
        (WAITING, "alpha", ()),
        (STARTING, "beta", ()),
        (REDUCING, "beta", ("--wire-dtype", "int8", "-x", "DISTRUN_FAN_OUT=1", "-np", "3")),
    ],
    ids=["in an allreduce", "while waiting", "starting", "in a quantised reduction by leaders"],
)
def test_a_cut_link_ends_the_job_with_one_sentence(ready, network, code, which, options):
    """The kernels of ranks give up a second after the launcher has noticed it, which suffices on a busy machine."""
    options = options or ("-np", "2")
    job = ready(int(options[-1]), "-H", "alpha:1,beta:2", "--keepalive", "10", *options, code=code, sign=b"going")
    cut = network.hosts[which]
    with cut.cut_off():
        assert job.wait() == 1
        assert f"nothing was heard from {which} for 10 s" in reports(job)[0]
        assert len(reports(job)) == 1, job.stderr.data.decode()
        cut.assert_gone()


@pytest.mark.parametrize(
    "code", [pytest.param(REDUCING, marks=pytest.mark.gate), WAITING], ids=["in an allreduce", "while waiting"]
)
def test_hosts_that_no_longer_hear_each_other_notice_it_without_the_launcher(ready, alpha, beta, code):
    job = ready(2, "-H", "alpha:1,beta:1", "--keepalive", "5", code=code, sign=b"going")
    with blocked_path(alpha, beta):
        assert job.process.wait(DEADLINE) == 1
    said = job.ended(1).decode()
    # The two kernels give up within milliseconds of each other. Only one direction is cut, so if beta's is first, its
    # reset reaches alpha, which may be the first to end the job and then speaks of that.
    reason = r"(nothing was heard from its host|its connection broke \(Connection reset by peer\))"
    assert re.search(rf"JobAbortedError: .*rank [01] \(process \d+ on host (alpha|beta)\) is gone: {reason}", said), (
        said
    )


def test_hosts_that_never_hear_each_other_are_told_where_it_was_tried(distrun, alpha, beta):
    with blocked_path(alpha, beta):
        soon = ("env", "DISTRUN_START_TIMEOUT=3")  # for the ranks; the agents have as long as usual
        said = distrun("-H", "alpha:1,beta:1", *soon, sys.executable, LATE, "-1").ended(1).decode()
    assert re.search(
        rf"BootstrapError: (rank 1 did not find rank 0 within 3 s: .*{re.escape(alpha.address)}:\d+"
        rf"|ranks? \[?1\]? of 2 did not call init\(\) within 3 s at {re.escape(alpha.address)}:\d+)",
        said,
    ), said
    assert "--network" in said


@pytest.mark.parametrize("code", [REDUCING, WAITING], ids=["in an allreduce", "while waiting"])
def test_a_killed_remote_rank_is_reported_even_where_ranks_wait_for_it(ready, beta, code):
    job = ready(2, "-H", "alpha:1,beta:1", "--keepalive", "600", code=code, sign=b"going")  # which does not notice it
    (rank,) = (item for item in beta.processes() if item.environ().get("RANK") == "1")
    os.kill(rank.pid, signal.SIGKILL)
    assert job.wait() == 137
    assert f"rank 1 on beta (pid {rank.pid})" in reports(job)[0]
    assert "was killed by SIGKILL" in reports(job)[0]


def test_a_stopped_remote_rank_is_a_stall_and_the_job_goes_on(ready, beta):
    job = ready(2, "-H", "alpha:1,beta:1", "--stall-warning", "0.5", code=REDUCING, sign=b"going")
    (rank,) = (item for item in beta.processes() if item.environ().get("RANK") == "1")
    rank.suspend()
    job.stderr.wait_for(f"rank 1 (process {rank.pid} on host beta)".encode())  # not there, or stopped in the middle
    before = job.stdout.data.count(b"going")
    rank.resume()
    job.stdout.wait_for(b"going", before + 10)
    assert b"Error" not in job.stderr.data
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143


@pytest.mark.parametrize(
    ("keepalive", "code"), [("0", CHECKING), ("60", EXCHANGING)], ids=["arrays without keepalive", "messages"]
)
def test_a_cut_that_is_shorter_than_the_keepalive_is_survived_by_allreduces_and_messages(ready, beta, keepalive, code):
    """Everything that was on its way is lost again and again for 25 s; the kernel pauses for longer each time."""
    job = ready(2, "-H", "alpha:1,beta:1", "--keepalive", keepalive, code=code, sign=b"step 3")
    beta.cut()
    time.sleep(25)
    before = job.stdout.data.count(b"step")
    beta.mend()
    job.stdout.wait_for(b"step", before + 10)
    assert b"Error" not in job.stderr.data  # afterwards, a rank that dies later may say who died first
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143


def test_a_cut_that_is_shorter_than_the_keepalive_is_survived_by_a_job_that_idles(distrun, python, beta):
    read, written = os.pipe()
    job = distrun("-H", "alpha:1,beta:1", "--keepalive", "60", "--stdin", "0", *python(IDLE), stdin=read)
    os.close(read)
    job.stdout.wait_for(b"idle", 2)
    beta.cut()
    time.sleep(25)
    beta.mend()
    os.write(written, b"\n")
    os.close(written)
    job.stdout.wait_for(b"right", 2)
    assert job.wait() == 0, job.stderr.data


@pytest.mark.parametrize(("code", "sign"), [(REDUCING, b"going"), (EXCHANGING, b"step")], ids=["arrays", "messages"])
def test_ranks_that_only_exchange_data_notice_a_dead_link_in_the_middle(ready, alpha, beta, code, sign):
    """Rank 0, on this machine, reaches both: nobody's alarms end, and the kernel goes on trying for longer."""
    job = ready(3, "-H", "localhost:1,alpha:1,beta:1", "--keepalive", "3", code=code, sign=sign)
    with blocked_path(alpha, beta), blocked_path(beta, alpha):
        started = time.monotonic()
        assert job.process.wait(DEADLINE) == 1
        assert time.monotonic() - started < 12  # the kernel alone takes 14
    said = job.ended(1).decode()
    assert re.search(
        r"rank [12] \(process \d+ on host (alpha|beta)\) is gone: nothing was heard from its host", said
    ), said
