"""Jobs in pods: late names and pods, evictions, lost nodes; without root, capabilities and a way to log in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ADDS = """
import os, distrun, numpy
distrun.init()
assert os.getuid() == 65534 and "CapEff:\\t0000000000000000" in open("/proc/self/status").read()
print(int(distrun.allreduce(numpy.ones(1000), op=distrun.Sum)[0]), distrun.local_rank(), os.uname().nodename)
"""
WAITS = "import time; print('up', flush=True); time.sleep(1000)"
# Goes beyond its 20th step when a file is there, which the test makes when it has ended a process of a pod.
COUNTS = """
import os, time, distrun, distrun.elastic, numpy
distrun.init()
@distrun.elastic.run
def train(state):
    while state.step < 40:
        while state.step == 20 and not os.path.exists({file!r}):
            time.sleep(0.05)
        distrun.allreduce(numpy.ones(2), name="x")
        time.sleep(0.05)
        state.step += 1
        if distrun.rank() == 0:
            print("step", state.step, "of", distrun.size(), flush=True)
        state.commit()
train(distrun.elastic.ObjectState(step=0))
"""


@pytest.mark.gate
def test_pods_find_each_other_though_the_first_comes_last_and_its_name_later_still(agents, cluster):
    others = [agents(index, ADDS, hosts=3, DISTRUN_SLOTS=str(index)) for index in (1, 2)]
    others[0].wait_for("waiting for the launcher at train-0.train:29400: ")
    others[0].wait_for("the name is unknown")
    first = agents(0, ADDS, "-v", hosts=3, named=False)
    first.wait_for("")
    cluster.publish(first)
    assert [pod.wait() for pod in (first, *others)] == [0, 0, 0], first.log
    for line in ("[0] 4 0 train-0", "[1] 4 0 train-1", "[2] 4 0 train-2", "[3] 4 1 train-2"):
        assert line in first.log, first.log
    assert not any("[" in pod.log for pod in others)


def test_the_key_is_in_no_command_line_and_in_no_log(agents):
    pods = [agents(index, WAITS) for index in (0, 1)]
    pods[0].wait_for("up", 2)
    shown = [*(pod.log for pod in pods), *(" ".join(item.cmdline()) for pod in pods for item in pod.processes())]
    assert not any("0123456789abcdef" in text for text in shown)
    assert pods[0].evict() == 143
    assert pods[1].wait() == 143


def test_a_pod_that_is_killed_without_a_word_is_one_failure_report(agents):
    pods = [agents(index, WAITS, "--keepalive", "2") for index in (0, 1)]
    pods[0].wait_for("up", 2)
    pods[1].kill()
    assert pods[0].wait() == 143
    assert "nothing was heard from train-1 for 2 s: the host or the network to it is gone" in pods[0].log


def test_a_network_that_is_cut_ends_the_ranks_on_both_sides(agents):
    # Within the start timeout the second pod meets the first one, and later tries to.
    pods = [agents(index, WAITS, "--keepalive", "2", "--start-timeout", "12") for index in (0, 1)]
    pods[0].wait_for("up", 2)
    pods[1].cut()
    assert (pods[0].wait(), pods[1].wait()) == (143, 143)
    assert "the connection with the launcher at train-0.train:29400 is gone" in pods[1].log
    assert "was not reached within 12 s" in pods[1].log


@pytest.mark.gate
def test_a_rank_that_fails_gives_every_pod_its_status_and_its_failure_report(agents):
    fails = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit('disk full'); time.sleep(1000)"
    pods = [agents(index, fails) for index in (0, 1)]
    assert [pod.wait() for pod in pods] == [1, 1]
    for pod in pods:
        assert "rank 1 on train-1" in pod.log
        assert "disk full" in pod.log


def test_an_evicted_pod_is_replaced_by_one_with_its_index_and_no_step_is_lost(agents, cluster):
    evicted = Path(cluster.tmp, "evicted")
    code = COUNTS.format(file=str(evicted))
    first, second = (agents(index, code, "--elastic") for index in (0, 1))
    first.wait_for("step 10 of 2")
    assert second.evict() == 143
    evicted.touch()
    first.wait_for("was told to end: its host's process received SIGTERM")
    again = agents(1, code, "--elastic")
    assert first.wait() == 0, first.log
    assert again.wait() == 0, again.log
    assert "generation 2 goes on with 2 ranks" in first.log
    steps = [line for line in first.log.splitlines() if "step" in line]
    assert steps == [f"[0] step {step} of 2" for step in range(1, 41)]


def test_an_agent_that_dies_in_an_elastic_job_is_started_again_in_its_pod(agents, cluster):
    killed = Path(cluster.tmp, "killed")
    first, second = (agents(index, COUNTS.format(file=str(killed)), "--elastic") for index in (0, 1))
    first.wait_for("step 10 of 2")
    second.find("distrun.runner.agent").kill()
    killed.touch()
    assert [first.wait(), second.wait()] == [0, 0], first.log + second.log
    assert "(pid " in first.log
    assert "was killed by SIGKILL" in first.log
    assert "step 40 of 2" in first.log


def test_a_script_that_is_a_pods_command_itself_is_one_rank_of_the_job(cluster):
    told = {"DISTRUN_HOSTS": "2", "DISTRUN_KEY": "0123456789abcdef" * 4}
    pods = [cluster.start(index, sys.executable, "-c", ADDS, **told) for index in (1, 0)]
    assert [pod.wait() for pod in pods] == [0, 0], pods[0].log + pods[1].log
    assert pods[0].log.strip().endswith("2 0 train-1")


def test_the_example_trains_in_pods_as_its_manifest_starts_it(cluster):
    root = Path(__file__).parents[3] / "examples"
    *_, job = yaml.safe_load_all((root / "kubernetes" / "job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    told = {item["name"]: item.get("value", "0123456789abcdef" * 4) for item in container["env"]}
    (cluster.folder / "numpy_spirals.py").write_text((root / "numpy_spirals.py").read_text())
    words = {"distrun": [sys.executable, "-m", "distrun.runner"], "python": [sys.executable]}
    command = [word for item in container["command"] for word in words.get(item, [item])]
    pods = [cluster.start(index, *command, job="spirals", **{**told, "HOME": cluster.tmp}) for index in (0, 1)]
    assert [pod.wait() for pod in pods] == [0, 0], pods[0].log + pods[1].log
    assert "accuracy" in pods[0].log
