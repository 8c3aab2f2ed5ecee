"""The example without a framework does what it says, alone and on two ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from session.tiers import one_in_gate

EXAMPLE = Path(__file__).parents[2] / "examples" / "numpy_spirals.py"


@pytest.mark.gate
@pytest.mark.parametrize(
    "launcher", one_in_gate([sys.executable, "-m", "distrun.runner", "-np", "2"], []), ids=["distrun", "python"]
)
def test_the_spirals_are_told_apart_and_all_checks_hold(launcher):
    command = [*launcher, sys.executable, str(EXAMPLE), "--check"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("... ok") == 3
