"""Some of the ranks at work: process sets, and ranks that have joined; see programs/process_sets.py, uneven_data.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from session.tiers import one_in_gate

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate((1, 2), 3), ids=str)
def test_sets_of_ranks_work_at_the_same_time(job, size):
    job("process_sets", size)


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate((1, 2), 3), ids=str)
def test_ranks_may_have_data_of_different_lengths(job, size):
    job("uneven_data", size)


@pytest.mark.parametrize("example", ["torch_process_sets", "torch_uneven_data"])
@pytest.mark.parametrize("launcher", [[], [sys.executable, "-m", "distrun.runner", "-np", "2"]], ids=["1", "2"])
def test_the_examples_checks_hold(example, launcher):
    command = [*launcher, sys.executable, str(EXAMPLES / f"{example}.py"), "--check"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("... ok") >= 3
