"""Parameter servers within an allocation: srun starts them on the nodes of the ranks, or on some that have none."""

from __future__ import annotations

import psutil
import pytest
from running_distrun import DEADLINE

# The only copy of the server was made at the beginning: what was pushed until its node is lost is lost with it.
WORKER = """
import os, sys, time
import numpy as np
import distrun
from distrun.methods.servers.layout import Layout, Parameter
from distrun.methods.servers.rules import Rule
from distrun.methods.servers.session import Session

distrun.init()
rule = Rule("torch.SGD", dict(momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, delay=0))
session = Session(Layout((Parameter("a", (30000,), 0),), (rule,), distrun.size(), True))
if distrun.rank() == 0:
    session.start({0: np.zeros(30000, np.float32)})
session.pull(0)

def train(steps):
    for _ in range(steps):
        session.await_values()
        session.gradient_of(0)[:] = 1.0
        session.push([1.0], [True], {}, 0, 0)
    session.await_values()
    distrun.barrier()

train(5)
print("training", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
train(2)
assert (session.values == float(sys.argv[2])).all(), session.values
"""


@pytest.fixture
def train(distrun, python, tmp_path):
    """Return a function that starts a job of servers, which trains until the file `end` is there."""

    def start(*options, expected=-7.0):
        return distrun(*options, *python(WORKER), str(tmp_path / "end"), str(expected))

    return start


def servers(slurm):
    """Return how many servers run on each node."""
    return {name: len(_servers_of(agent)) for name, agent in slurm.agents().items()}


def _servers_of(agent):
    return [child for child in agent.children(recursive=True) if child.cmdline()[-1].endswith("process.py")]


@pytest.mark.parametrize(
    ("options", "ranks", "expected"),
    [
        (["--servers", "3"], 4, {"alpha": 2, "beta": 1}),
        pytest.param(
            ["-H", "alpha:2", "--servers", "2", "--server-hosts", "beta"],
            *(2, {"alpha": 0, "beta": 2}),
            marks=pytest.mark.gate,
        ),
        (["-np", "1", "--servers", "2", "--server-hosts", "beta,alpha"], 1, {"alpha": 1, "beta": 1}),
    ],
    ids=["in turns", "without ranks", "both"],
)
def test_servers_are_on_the_nodes_that_are_named(train, slurm, tmp_path, options, ranks, expected):
    job = train(*options)
    job.stdout.wait_for(b"training", ranks)
    assert servers(slurm) == expected
    (tmp_path / "end").touch()
    assert job.wait() == 0, job.stderr.data


def test_a_server_that_dies_is_started_again(train, slurm, tmp_path):
    job = train("-H", "alpha:2", "--servers", "1", "--server-hosts", "beta", "--server-restarts", "1")
    job.stdout.wait_for(b"training", 2)
    (server,) = _servers_of(slurm.agents()["beta"])
    server.kill()
    job.stderr.wait_for(b"it is restarted with its parameters (restart 1 of 1)")
    (tmp_path / "end").touch()
    assert job.wait() == 0, job.stderr.data


@pytest.mark.parametrize("allocation", [("--no-kill",)], indirect=True)
@pytest.mark.parametrize(
    "is_taken",
    [pytest.param(False, marks=pytest.mark.gate), True],
    ids=["its agent is gone", "Slurm takes it away"],
)
def test_servers_of_a_node_that_is_lost_move_to_another(train, slurm, tmp_path, is_taken):
    options = ["--servers", "1", "--server-hosts", "beta", "--server-restarts", "1", "--keepalive", "3"]
    job = train("-H", "alpha:2", *options, "--server-checkpoint", f"{tmp_path / 'copies'}:1000", expected=-2.0)
    job.stdout.wait_for(b"training", 2)
    beta = slurm.network.hosts["beta"]
    lost = slurm.processes(beta)
    if is_taken:
        beta.cut()
        slurm.set_state("beta", "down")
    else:
        slurm.agents()["beta"].kill()
    try:
        job.stderr.wait_for(b"goes on with its copy of ")
        assert psutil.wait_procs(lost, timeout=DEADLINE)[1] == []  # by themselves, or workers might go on with them
    finally:
        beta.mend()
    (tmp_path / "end").touch()
    assert job.wait() == 0, job.stderr.data
    assert b"; server 0 is started on alpha with its last copy (restart 1 of 1)\n" in job.stderr.data


def test_servers_on_a_host_outside_of_the_allocation_are_refused(distrun):
    job = distrun("--launcher", "srun", "--servers", "1", "--server-hosts", "gamma", "true")
    assert job.wait() == 2
    assert b"--launcher srun does not reach gamma: allowed are the hosts of Slurm job " in job.stderr.data
