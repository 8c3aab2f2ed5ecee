"""Sweeps on several hosts: trials that span them, and a host that is lost."""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import suppress

import psutil
import pytest
from running_distrun import DEADLINE

SCRIPT = """
import os, pathlib, socket, sys, time
import distrun

distrun.init()
while not pathlib.Path(sys.argv[1], "go").exists():
    time.sleep(0.05)
names = distrun.allgather_object(socket.gethostname())
total = distrun.allreduce(1.0, op=distrun.Sum, name="total")
gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
print(os.environ["DISTRUN_TRIAL"], ",".join(names), "CUDA_VISIBLE_DEVICES", gpus, flush=True)
distrun.report(total + int(os.environ["DISTRUN_TRIAL"]), 1)
"""
WAITING = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
while not (folder / "go").exists():
    time.sleep(0.05)
"""


def trials(folder):
    lines = (folder / "trials.jsonl").read_text().splitlines()
    return {entry["trial"]: entry for entry in map(json.loads, lines)}


@pytest.mark.gate
def test_trials_have_the_slots_of_all_hosts_and_span_them_where_they_must(distrun, tmp_path, alpha, beta):
    (tmp_path / "script.py").write_text(SCRIPT)
    job = distrun(
        *("sweep", "--output", str(tmp_path / "s"), "-H", "alpha:[4,5,6],beta:3", "-np", "2", "--seeds", "6"),
        *("--prune", "--prune-after", "1", sys.executable, str(tmp_path / "script.py"), str(tmp_path)),
    )
    wait_for(lambda: len(running(alpha)) == len(running(beta)) == 3, job)
    (tmp_path / "go").touch()
    assert job.wait() == 0, job.stderr.data
    done = trials(tmp_path / "s")
    assert sorted({trial["state"] for trial in done.values()}) == ["complete", "pruned"]
    assert [trial["value"] for trial in done.values()] == [2.0 + number for number in done]
    number_of = {tuple(done[number]["hosts"]): number for number in range(3)}
    assert number_of.keys() == {("alpha",), ("beta",), ("alpha", "beta")}
    alone, several = number_of["alpha",], number_of["alpha", "beta"]
    said = {number: (tmp_path / "s" / "logs" / f"trial-{number}.log").read_text() for number in (alone, several)}
    assert f"[1] {alone} alpha,alpha CUDA_VISIBLE_DEVICES 4,5\n" in said[alone]
    assert f"[0] {several} alpha,beta CUDA_VISIBLE_DEVICES 6\n" in said[several]


def test_the_trials_of_a_host_that_is_cut_off_are_tried_again_elsewhere(distrun, tmp_path, alpha, beta):
    (tmp_path / "script.py").write_text(WAITING)
    job = distrun(
        *("sweep", "--output", str(tmp_path / "s"), "-H", "alpha:1,beta:1", "--seeds", "2", "--keepalive", "2"),
        *(sys.executable, str(tmp_path / "script.py"), str(tmp_path)),
    )
    wait_for(lambda: running(alpha) and running(beta), job)
    with beta.cut_off():
        job.stderr.wait_for(b"host beta is lost")
        (tmp_path / "go").touch()
        job.stderr.wait_for(b"trial 1 complete")
        assert job.wait() == 0
    done = trials(tmp_path / "s")
    assert [(trial["state"], trial["hosts"]) for trial in done.values()] == [("complete", ["alpha"])] * 2
    assert sorted(trial["attempts"] for trial in done.values()) == [1, 2]


def wait_for(condition, job):
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until, job.stderr.data
        time.sleep(0.05)


def running(host):
    """Return the ranks on a host; what waits in spares is none of them."""
    found = []
    for process in host.processes():
        with suppress(psutil.NoSuchProcess):  # logins come and go
            line = " ".join(process.cmdline())
            if "script.py" in line and "spare.py" not in line:
                found.append(process)
    return found


def test_a_host_that_cannot_be_used_is_left_out_and_ctrl_c_ends_the_others(distrun, tmp_path, network, alpha):
    (tmp_path / "script.py").write_text(WAITING)
    job = distrun(
        *("sweep", "--output", str(tmp_path / "s"), "-H", f"alpha:1,{network.address}9:1", "--seeds", "2"),
        *("--python", sys.executable, sys.executable, str(tmp_path / "script.py"), str(tmp_path)),
    )
    job.stderr.wait_for(b"cannot be used and is tried again")
    wait_for(lambda: running(alpha), job)
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
