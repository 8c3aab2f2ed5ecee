"""AsyncOptimizer of torch on the servers of a job of its own: other jobs have none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
PROGRAM = Path(__file__).parent / "programs" / "torch_workers.py"
TIMEOUT = 300.0  # seconds
ALONE = "import distrun.torch as dt; dt.init(); dt.AsyncOptimizer(None)"


def run(*line):
    command = [sys.executable, "-m", "distrun.runner", *line]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)


@pytest.mark.gate
def test_workers_train_on_servers_as_one_process_does():
    job = run("-np", "2", "--servers", "2", sys.executable, str(PROGRAM))
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["[0] all is well", "[1] all is well"]


def test_a_job_without_servers_is_told_how_to_have_them():
    job = run("-np", "1", sys.executable, "-c", ALONE)
    assert job.returncode == 1
    assert "this job has none: start it with distrun --servers N" in job.stderr


def test_who_does_not_use_servers_does_not_import_what_they_need():
    code = (
        "import sys, distrun.torch; sys.exit(any(name.startswith('distrun.methods.servers') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT, check=False).returncode == 0
