"""`distrun ps --json`, `top --json` and `stop`, beside a running job."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gate

STEPS = """
import time, numpy as np, distrun
distrun.init()
print("begun", flush=True)
while True:
    distrun.allreduce(np.ones(4), "x")
    time.sleep(0.02)
"""


def asked(*words):
    command = [sys.executable, "-m", "distrun.runner", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_job_is_listed_shown_and_ended_by_programs(distrun, python):
    job = distrun("-np", "2", "--oversubscribe", *python(STEPS))
    for rank in range(2):
        job.stdout.wait_for(b"[%d] begun" % rank)
    pid = job.process.pid
    (listed,) = [one for one in json.loads(asked("ps", "--json").stdout) if one["pid"] == pid]
    assert (listed["ranks"], listed["hosts"]) == (2, ["localhost"])
    assert "address" not in listed
    shown = json.loads(asked("top", str(pid), "--json").stdout)
    assert shown["job"] == listed["job"]
    assert [rank["rank"] for rank in shown["ranks"]] == [0, 1]
    assert shown["status"] is None
    refused = asked("stop", "nobody")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "no job is called 'nobody'" in refused.stderr
    stopped = asked("stop", listed["job"])
    assert (stopped.returncode, stopped.stdout) == (0, f"job {listed['job'][:8]} was told to end\n")
    assert job.wait() == 143
