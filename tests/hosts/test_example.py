"""The example that a newcomer reads first, on two hosts with two ranks each: the same bits on all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_digits.py"
COMMAND = (sys.executable, str(EXAMPLE), "--check")
DEADLINE = 120.0  # seconds


@pytest.mark.parametrize("launcher", ["distrun", pytest.param("mpirun", marks=pytest.mark.mpi)])
def test_the_example_on_two_hosts(request, launcher):
    job = request.getfixturevalue(launcher)("-H", "alpha:2,beta:2", *COMMAND, PYTHONFAULTHANDLER="1")
    assert job.wait(DEADLINE) == 0, job.stdout.data + job.stderr.data
    assert job.stdout.data.count(b"... ok") == 3


def test_over_ssh_in_half_precision_between_hosts(distrun):
    job = distrun("-H", "alpha:2,beta:2", "--wire-dtype", "bfloat16", *COMMAND, PYTHONFAULTHANDLER="1")
    job.wait(DEADLINE)  # it does not equal one process to 1e-5, and says so
    assert b"all ranks have bit-identical weights ... ok" in job.stdout.data
