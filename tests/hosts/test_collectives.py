"""Collectives between real hosts: the rank programs of tests/parallel, started over SSH."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hosts_conftest import call

PROGRAMS = Path(__file__).parents[1] / "parallel" / "programs"
ADDRESSES = """
import json, distrun, psutil
distrun.init()
distrun.barrier()
found = psutil.Process().net_connections("tcp")
remote = sorted({c.raddr.ip for c in found if c.raddr})
print(json.dumps([distrun.rank(), remote, [c.laddr for c in found if not c.raddr]]))
distrun.barrier()
"""


@pytest.fixture
def run(distrun, alpha, beta):
    """Runs a program on hosts, to its successful end, after which nothing is left."""

    def finish(hosts, *command, **environ):
        job = distrun("-H", hosts, "--no-tag-output", sys.executable, *command, OMP_NUM_THREADS="1", **environ)
        assert job.wait() == 0, job.stderr.data[-5000:].decode()
        alpha.assert_gone()
        beta.assert_gone()
        job.assert_gone()
        return job.stdout.data.decode()

    return finish


@pytest.mark.parametrize("program", ["allreduce", "errors", "objects", "lifecycle", "bursts"])
def test_two_hosts(run, program):
    run("alpha:1,beta:1", str(PROGRAMS / f"{program}.py"))


@pytest.mark.parametrize("program", ["allreduce", "order", "alltoall"])
def test_two_hosts_with_two_ranks_each(run, program):
    run("alpha:2,beta:2", str(PROGRAMS / f"{program}.py"))


@pytest.mark.parametrize("program", ["allreduce", "broadcast", "allgather"])
def test_three_hosts_of_which_one_has_the_launcher(run, program):
    run("localhost:1,beta:1,alpha:2", str(PROGRAMS / f"{program}.py"))


def test_a_link_that_drops_packets_makes_nothing_wrong(run, alpha, beta):
    """The link is slow, and its queue overflows all the time."""
    narrow = ("root", "tbf", "rate", "300mbit", "burst", "20kb", "limit", "30kb")
    for host in (alpha, beta):
        call("ip", "netns", "exec", host._namespace, "tc", "qdisc", "replace", "dev", "eth0", *narrow)
    try:
        run("alpha:2,beta:1", str(PROGRAMS / "alltoall.py"))
    finally:
        for host in (alpha, beta):
            dropped = call("ip", "netns", "exec", host._namespace, "tc", "-s", "qdisc", "show", "dev", "eth0")
            call("ip", "netns", "exec", host._namespace, "tc", "qdisc", "del", "dev", "eth0", "root")
    assert "(dropped 0," not in dropped


def test_ranks_talk_to_those_they_need_and_listen_to_nobody_once_all_are_there(run, alpha, beta):
    said = [json.loads(line) for line in run("alpha:2,beta:2", "-c", ADDRESSES).splitlines()]
    for rank, peers, listening in said:
        assert peers == [beta.address if rank < 2 else alpha.address]
        assert listening == [], "a rank still takes calls"
