"""Schedulers and clusters that cannot be had here, played by their variables and by a script in the place of a command.

tests/slurm has a real scheduler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from session.tiers import one_in_gate

pytestmark = pytest.mark.gate

RESOURCES = {"R_lite": [{"rank": "0", "children": {"core": "0-7", "gpu": "0-2"}}], "nodelist": ["localhost"]}
ANSWER = json.dumps({"version": 1, "execution": RESOURCES})

RANK = """
import numpy as np
import distrun
distrun.init()
total = distrun.allreduce(np.full(3, distrun.rank() + 1.0), op=distrun.Sum)
print(distrun.rank(), distrun.size(), distrun.local_rank(), distrun.cross_size(), total.tolist(), flush=True)
"""
KEY = "0123456789abcdef" * 2


@pytest.fixture
def flux(tmp_path):
    """Puts a script in the place of `flux`, and returns the variables that a batch script finds then."""

    def make(script):
        file = tmp_path / "bin" / "flux"
        file.parent.mkdir()
        file.write_text(script)
        file.chmod(0o755)
        return {"PATH": f"{file.parent}:{os.environ['PATH']}", "FLUX_URI": "local:///run/flux/local"}

    return make


def test_hosts_that_flux_tells_of(distrun, flux):
    variables = flux(f"#!/bin/sh\n[ \"$*\" = 'resource R' ] && echo '{ANSWER}'\n")
    job = distrun("sh", "-c", "echo $RANK $WORLD_SIZE", **variables)
    assert job.wait() == 0, job.stderr.data
    assert b"distrun: hosts of Flux job: localhost:3\n" in job.stderr.data
    assert set(job.stdout.data.splitlines()) == {b"[0] 0 3", b"[1] 1 3", b"[2] 2 3"}


@pytest.mark.parametrize(
    ("script", "reason"),
    one_in_gate(
        pytest.param(
            "#!/bin/sh\necho 'flux-resource: ERROR: unable to connect' >&2; exit 1\n", "ERROR: unable to connect"
        ),
        pytest.param("#!/no/such/shell\n", "no such file or directory"),
    ),
)
def test_a_flux_that_does_not_answer_is_told(distrun, flux, script, reason):
    job = distrun("true", **flux(script))
    assert job.wait() == 2
    sentence = job.stderr.data.decode()
    assert sentence.startswith("distrun: error: FLUX_URI is set, and `flux resource R` does not tell the hosts: ")
    assert sentence.endswith(f"{reason}; give the hosts with -H\n")


@pytest.mark.full
def test_without_flux_hosts_that_are_given_do(distrun, flux):
    job = distrun("-H", "localhost:2", "true", **flux("#!/no/such/shell\n"))
    assert job.wait() == 0, job.stderr.data


def test_ranks_of_a_launcher_do_not_look_for_clusters(distrun):
    code = "import sys, distrun; distrun.init(); print('distrun.host.clusters.sagemaker' in sys.modules)"
    job = distrun("-np", "1", sys.executable, "-c", code)
    assert job.wait() == 0, job.stderr.data
    assert job.stdout.data == b"[0] False\n"


def batch(index):
    """Return the variables that AWS Batch gives a node of two."""
    leader = {} if index == 0 else {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "127.0.0.1"}
    return leader | {
        "AWS_BATCH_JOB_ID": f"17-{os.getpid()}#{index}",
        "AWS_BATCH_JOB_NUM_NODES": "2",
        "AWS_BATCH_JOB_NODE_INDEX": str(index),
        "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    }


def azure(rank):
    """Return the variables that Azure ML gives the processes of two nodes with two each."""
    return {
        "AZUREML_NODE_COUNT": "2",
        "AZUREML_RUN_ID": f"calm_rice_{os.getpid()}",
        "NODE_RANK": str(rank // 2),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "6105",
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_RANK": str(rank % 2),
    }


@pytest.mark.parametrize(
    ("variables", "expected"),
    one_in_gate(
        pytest.param([batch(0), batch(1)], ["0 2 0 2 [3.0, 3.0, 3.0]", "1 2 0 2 [3.0, 3.0, 3.0]"]),
        pytest.param(
            [azure(rank) for rank in range(4)], [f"{rank} 4 {rank % 2} 2 [10.0, 10.0, 10.0]" for rank in range(4)]
        ),
    ),
    ids=["AWS Batch", "Azure ML"],
)
def test_ranks_in_the_containers_of_a_cluster(variables, expected):
    usual = {name: text for name, text in os.environ.items() if not name.startswith("DISTRUN_")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**usual, "DISTRUN_KEY": KEY, "DISTRUN_START_TIMEOUT": "60", **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in variables
    ]
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    assert [out.strip() for out, _ in said] == expected


def test_agents_in_the_containers_of_a_cluster(tmp_path, meeting_port):
    """Host 0 has the output of all. Both containers are on one machine, whose ranks are local to each other."""
    usual = {name: text for name, text in os.environ.items() if not name.startswith("DISTRUN_")}
    command = [
        sys.executable,
        "-m",
        "distrun.runner",
        "agent",
        "--slots",
        "2",
        "--rdzv-endpoint",
        f"127.0.0.1:{meeting_port}",
    ]
    hosts = [
        subprocess.Popen(
            [*command, "sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE"],
            env={**usual, "DISTRUN_KEY": KEY, "TMPDIR": str(tmp_path), **batch(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in (1, 0)
    ]
    said = [host.communicate(timeout=120) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert sorted(said[1][0].splitlines()) == [f"[{rank}] {rank} {rank} 4" for rank in range(4)]
    assert said[0][0] == ""


def test_a_cluster_without_a_secret_is_told_what_to_set():
    usual = {name: text for name, text in os.environ.items() if not name.startswith("DISTRUN_")}
    done = subprocess.run([sys.executable, "-c", RANK], env={**usual, **batch(1)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "AWS Batch gives its ranks no secret to know one another by: set DISTRUN_KEY" in done.stderr
