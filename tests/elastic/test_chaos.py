"""The chaos test in short: random ranks of a job under the real launcher are killed, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE = 900.0  # seconds; far more than it takes, so that a busy machine fails no test


@pytest.mark.parametrize("options", [(), ("--min-np=1", "--workers=1")], ids=["replaced", "shrinking"])
def test_nothing_is_lost_whoever_is_killed(options):
    command = [sys.executable, "-m", "benchmarks.chaos", "--kills=4", "--ranks=3", "--seed=5", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kills in" in done.stdout
    assert "nothing was lost or doubled, and all weights were equal" in done.stdout
    if not options:
        assert "the losses were compared with those of an undisturbed job" in done.stdout
