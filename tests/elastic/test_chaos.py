"""The chaos test in short: random ranks of a job under the real launcher are killed, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE = 900.0  # seconds; far more than it takes, so that a busy machine fails no test


@pytest.mark.parametrize(
    ("kills", "options"),
    [(4, ("--ranks=3",)), (4, ("--ranks=3", "--min-np=1", "--workers=1"))],
    ids=["replaced", "shrinking"],
)
def test_nothing_is_lost_whichever_rank_is_killed(kills, options):
    command = [sys.executable, "-m", "benchmarks.chaos", f"--kills={kills}", "--seed=5", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kills} kills in" in done.stdout
    assert "nothing was lost or doubled, and all weights were equal" in done.stdout
    if options == ("--ranks=3",):  # replaced, so that the size is kept
        assert "the losses were compared with those of an undisturbed job" in done.stdout
