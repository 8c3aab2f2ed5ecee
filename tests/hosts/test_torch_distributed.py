"""The backend "distrun" of torch.distributed between two hosts: programs end as on gloo, by each launcher."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parents[1] / "frameworks" / "torch_distributed" / "programs"
FOUR = ("-H", "alpha:2,beta:2")
DEADLINE = 120.0  # seconds; far more than anything takes, so that a busy machine fails no test
EQUAL = ["0 4 alpha", "1 4 alpha", "2 4 beta", "3 4 beta"]


def beside_gloo(**group):
    """Return the command of a rank that compares programs on distrun with the same on gloo."""
    return [sys.executable, "-Wignore", str(PROGRAMS / "beside_gloo.py"), json.dumps(group)]


def equal(job):
    """Wait for the end of a job; return the ranks whose programs have ended as on gloo."""
    job.ended(0, DEADLINE)
    return sorted(re.findall(r"EQUAL (.*)", job.stdout.data.decode()))


def test_ranks_of_distrun(distrun):
    assert equal(distrun(*FOUR, *beside_gloo(backend="distrun"))) == EQUAL


def test_scripts_that_ask_for_gloo_get_distrun_on_request(distrun):
    job = distrun(*FOUR, "--torch-backend", *beside_gloo(backend="gloo"))
    assert equal(job) == EQUAL
    assert job.stderr.data.count(b"torch.distributed is on distrun; the script asks for gloo") == 1


@pytest.mark.mpi
def test_ranks_of_mpirun(mpirun):
    ranks = beside_gloo(backend="distrun", init_method="distrun://")
    assert equal(mpirun(*FOUR, "-x", "GLOO_SOCKET_IFNAME=eth0", *ranks)) == EQUAL


def test_every_collective(distrun):
    equal(distrun("-H", "alpha:1,beta:2", sys.executable, "-Wignore", str(PROGRAMS / "collectives.py"), "compact"))


@pytest.fixture
def torchrun(alpha, beta, tmp_path):
    """Runs a script by `torchrun` on both hosts; returns exit status and output of each."""

    def run(script, **environ):
        endpoint = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{alpha.address}:29400"]
        launcher = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", *endpoint]
        usual = {name: text for name, text in os.environ.items() if not name.startswith("DISTRUN_")}
        usual |= {"PATH": f"/usr/sbin:/sbin:{usual['PATH']}", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
        usual |= {"RES_OPTIONS": "timeout:1 attempts:1"}  # there is no name server
        names = tmp_path / "hosts"
        names.write_text(f"127.0.0.1 localhost\n{alpha.address} alpha\n{beta.address} beta\n")
        nodes = []
        for host in (alpha, beta):
            shell = f'hostname {host.name} && mount --bind {names} /etc/hosts && exec "$@"'
            named = ["unshare", "--uts", "--mount", "sh", "-c", shell, "sh"]  # torchrun asks for its host's name
            command = [*host.inside, *named, sys.executable, *launcher, *script]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            nodes.append(subprocess.Popen(command, env={**usual, **environ}, **pipes))
        said = [node.communicate(timeout=DEADLINE) for node in nodes]
        return [(node.returncode, *both) for node, both in zip(nodes, said, strict=True)]

    yield run
    alpha.assert_gone()
    beta.assert_gone()


def test_two_nodes_of_torchrun(torchrun):
    nodes = torchrun(beside_gloo(backend="distrun")[2:], DISTRUN_KEY="0123456789abcdef" * 2)
    assert [status for status, _, _ in nodes] == [0, 0], "\n".join(said for node in nodes for said in node[1:])
    assert sorted(re.findall(r"EQUAL (.*)", "".join(out for _, out, _ in nodes))) == EQUAL
