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
FLUX = {"FLUX_URI": "local:///run/flux/local"}


def test_hosts_that_flux_tells_of(distrun, tools):
    tools(flux=f"[ \"$*\" = 'resource R' ] && echo '{ANSWER}'")
    job = distrun("sh", "-c", "echo $RANK $WORLD_SIZE", **FLUX)
    assert job.wait() == 0, job.stderr.data
    assert b"distrun: hosts of Flux job: localhost:3\n" in job.stderr.data
    assert set(job.stdout.data.splitlines()) == {b"[0] 0 3", b"[1] 1 3", b"[2] 2 3"}


@pytest.mark.parametrize(
    ("script", "reason"),
    one_in_gate(
        pytest.param("echo 'flux-resource: ERROR: unable to connect' >&2; exit 1", "ERROR: unable to connect"),
        pytest.param("#!/no/such/shell\n", "no such file or directory"),
    ),
)
def test_a_flux_that_does_not_answer_is_told(distrun, tools, script, reason):
    tools(flux=script)
    sentence = distrun("true", **FLUX).ended(2).decode()
    assert sentence.startswith("distrun: error: FLUX_URI is set, and `flux resource R` does not tell the hosts: ")
    assert sentence.endswith(f"{reason}; give the hosts with -H\n")


@pytest.mark.full
def test_without_flux_hosts_that_are_given_do(distrun, tools):
    tools(flux="#!/no/such/shell\n")
    distrun("-H", "localhost:2", "true", **FLUX).ended(0)


def test_ranks_of_a_launcher_do_not_look_for_clusters(output):
    code = "import sys, distrun; distrun.init(); print('distrun.host.clusters.clouds' in sys.modules)"
    assert output("-np", "1", sys.executable, "-c", code) == b"[0] False\n"


def usual():
    """Return the variables of this process, without distrun's."""
    return {name: text for name, text in os.environ.items() if not name.startswith("DISTRUN_")}


def printed(command, variables):
    """Run a command with each of these variables, side by side and to successful ends; return what each prints."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env={**usual(), "DISTRUN_KEY": KEY, **own}, **pipes) for own in variables]
    said = [each.communicate(timeout=120) for each in started]
    assert [each.returncode for each in started] == [0] * len(started), said
    return [out for out, _ in said]


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
    ranks = [{"DISTRUN_START_TIMEOUT": "60", **own} for own in variables]
    assert [out.strip() for out in printed([sys.executable, "-c", RANK], ranks)] == expected


def test_agents_in_the_containers_of_a_cluster(tmp_path, rendezvous_port):
    """Host 0 has the output of all. Both containers are on one machine, whose ranks are local to each other."""
    command = [sys.executable, "-m", "distrun.runner", "agent", "--slots", "2"]
    command += ["--rdzv-endpoint", f"127.0.0.1:{rendezvous_port}", "sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE"]
    other, first = printed(command, [{"TMPDIR": str(tmp_path), **batch(index)} for index in (1, 0)])
    assert sorted(first.splitlines()) == [f"[{rank}] {rank} {rank} 4" for rank in range(4)]
    assert other == ""


def test_a_cluster_without_a_secret_is_told_what_to_set():
    environ = {**usual(), **batch(1)}
    done = subprocess.run([sys.executable, "-c", RANK], env=environ, capture_output=True, text=True)
    assert done.returncode == 1
    assert "AWS Batch gives its ranks no secret to know one another by: set DISTRUN_KEY" in done.stderr
