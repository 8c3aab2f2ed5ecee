"""Collectives between real hosts: the rank programs of tests/parallel, started over SSH."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running_distrun import DEADLINE

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
CONNECTIONS = """
import distrun, psutil
import numpy as np
def connections():
    found = psutil.Process().net_connections("tcp")
    assert all(c.raddr for c in found), "a rank still takes calls"
    return len(found)
def use(process_set):
    if process_set.included():
        numbers = np.arange(100_000)
        result = distrun.allreduce(numbers, "x", distrun.Sum, process_set=process_set)
        assert (result == process_set.size() * numbers).all()
distrun.init()
before = connections()
apart = distrun.add_process_set([0, 3])
made = connections() - before
use(apart)
distrun.remove_process_set(apart)
for ranks in ([0, 1, 3], [1, 3], [0, 3]):
    use(distrun.add_process_set(ranks))
distrun.barrier()
print(distrun.rank(), made, connections() - before)
distrun.barrier()
"""


@pytest.fixture
def run(distrun):
    """Runs a program on hosts, to its successful end."""

    def finish(hosts, *command, **environ):
        job = distrun("-H", hosts, "--no-tag-output", sys.executable, *command, OMP_NUM_THREADS="1", **environ)
        assert job.wait(4 * DEADLINE) == 0, job.stderr.data[-5000:].decode()
        return job.stdout.data.decode()

    return finish


@pytest.mark.parametrize("program", ["lifecycle", "bursts"])
def test_two_hosts(run, program):
    run("alpha:1,beta:1", str(PROGRAMS / f"{program}.py"))


@pytest.mark.parametrize(
    ("hosts", "programs"),
    [
        ("alpha:1,beta:1", ["allreduce", "errors", "objects"]),
        pytest.param("alpha:2,beta:2", ["each_kind", "messages"], marks=pytest.mark.gate),
        ("alpha:2,beta:2", ["order"]),
        # One of them has the launcher.
        ("localhost:1,beta:1,alpha:2", ["allreduce", "each_kind", "messages"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_collectives_of_several_hosts(run_each, hosts, programs):
    run_each(hosts, *programs)


def test_hosts_take_turns_in_getting_ranks_which_are_bound_there(run_each):
    options = ("--map-by", "node", "--bind-to", "core", "--report-bindings")
    said = run_each("alpha:2,beta:2", "allreduce", "each_kind", options=options)
    for rank, host in enumerate(["alpha", "beta"] * 2):
        assert f"distrun: rank {rank} on {host} is bound to CPUs " in said


def test_a_link_that_drops_packets_makes_nothing_wrong(run, shape, alpha, beta):
    """The link is slow, and its queue overflows all the time."""
    for host in (alpha, beta):
        shape(host, "rate 300mbit burst 20kb limit 30kb")
    run("alpha:2,beta:1", str(PROGRAMS / "each_kind.py"))
    for host in (alpha, beta):
        assert "(dropped 0," not in host.call("tc", "-s", "qdisc", "show", "dev", "eth0")


def test_ranks_talk_to_those_they_need_and_listen_to_nobody_once_all_are_there(run, alpha, beta):
    said = [json.loads(line) for line in run("alpha:2,beta:2", "-c", ADDRESSES).splitlines()]
    for rank, peers, listening in said:
        assert peers == [beta.address if rank < 2 else alpha.address]
        assert listening == [], "a rank still takes calls"


@pytest.mark.gate
def test_ranks_that_no_rail_of_the_world_joins_connect_once_when_a_set_needs_them(run):
    said = sorted(run("alpha:2,beta:2", "-c", CONNECTIONS).splitlines())
    assert said == ["0 1 1", "1 0 0", "2 0 0", "3 1 1"]


def test_process_sets_of_hosts_that_take_turns(run_each):
    run_each("alpha:2,beta:2", "process_sets", options=("--map-by", "node"))
