"""Parameter servers within an allocation: srun starts them on the nodes of the ranks, or on some that have none."""

from __future__ import annotations

import psutil
import pytest
from machines.rank_programs import SERVED_UNTIL
from running_distrun import DEADLINE


@pytest.fixture
def train(distrun, python, tmp_path):
    """Return a function that starts a job of servers, which trains until the file `end` is there."""

    def start(*options, expected):
        more = {"staleness": 0, "file": str(tmp_path / "end"), "more": [2] * 4, "expected": expected}
        return distrun(*options, *python(SERVED_UNTIL.format(**more)))

    return start


def servers(slurm):
    """Return how many servers run on each node."""
    return {name: len(_servers_of(agent)) for name, agent in slurm.agents().items()}


def _servers_of(agent):
    return [child for child in agent.children(recursive=True) if child.cmdline()[-1].endswith("process.py")]


@pytest.mark.parametrize(
    ("options", "ranks", "places"),
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
def test_servers_are_on_the_nodes_that_are_named(train, slurm, tmp_path, options, ranks, places):
    job = train(*options, expected=-22 * (ranks + 1) / 2)
    job.stdout.wait_for(b"training", ranks)
    assert servers(slurm) == places
    (tmp_path / "end").touch()
    assert job.wait() == 0, job.stderr.data


def test_a_server_that_dies_is_started_again(train, slurm, tmp_path):
    job = train("-H", "alpha:2", "--servers", "1", "--server-hosts", "beta", "--server-restarts", "1", expected=-33.0)
    job.stdout.wait_for(b"training", 2)
    (server,) = _servers_of(slurm.agents()["beta"])
    server.kill()
    job.stderr.wait_for(b"it is restarted with its parameters (restart 1 of 1)")
    (tmp_path / "end").touch()
    assert job.wait() == 0, job.stderr.data


@pytest.mark.parametrize("allocation", [("--no-kill",)], indirect=True)
@pytest.mark.parametrize(
    "is_taken", [pytest.param(False, marks=pytest.mark.gate), True], ids=["its agent is gone", "Slurm takes it away"]
)
def test_servers_of_a_node_that_is_lost_move_to_another(train, slurm, tmp_path, is_taken):
    options = ["--servers", "1", "--server-hosts", "beta", "--server-restarts", "1", "--keepalive", "3"]
    job = train("-H", "alpha:2", *options, "--server-checkpoint", f"{tmp_path / 'copies'}:1000", expected=-3.0)
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
    assert b"; server 0 is started on alpha with its last copy (restart 1 of 1)\n" in job.ended(0)


def test_servers_on_a_host_outside_of_the_allocation_are_refused(distrun):
    job = distrun("--launcher", "srun", "--servers", "1", "--server-hosts", "gamma", "true")
    assert b"--launcher srun does not reach gamma: allowed are the hosts of Slurm job " in job.ended(2)
