"""Checkpoints of torch; see programs/checkpoint.py for the behaviours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "programs" / "ddp_checkpoint.py"
DISTRUN = [sys.executable, "-m", "distrun.runner", "-np"]
DEADLINE = 240.0


@pytest.mark.parametrize("size", [2, (1, 2)])
def test_models_and_optimizers_go_on_as_if_nothing_had_happened(job, size, tmp_path):
    job("checkpoint", size, str(tmp_path))


@pytest.mark.parametrize("mode", [[], ["sharded"]])
def test_scripts_of_torch_distributed_have_checkpoints_too(tmp_path, mode):
    def run(folder: str, steps: int, size: int = 2) -> tuple[int, float]:
        done = subprocess.run(
            [*DISTRUN, str(size), sys.executable, str(SCRIPT), str(tmp_path / folder), str(steps), *mode],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        start, total = done.stdout.partition("RESULT")[2].split()
        return int(start), float(total)

    assert run("a", 4)[0] == 0
    at_once = run("b", 8)
    resumed = run("a", 8)
    assert resumed == (4, at_once[1])
    assert run("b", 8, size=3) == (8, at_once[1])
