"""The page for those who come from other launchers: its scripts, under their own launcher and under distrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machines.reader import blocks

PAGE = Path(__file__).parents[3] / "docs" / "coming-from-others.md"
DISTRUN = (sys.executable, "-m", "distrun.runner", "-np", "2")
PYTHON = (sys.executable,)
DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test


@pytest.fixture
def errors(tmp_path):
    """Returns a function that runs a script of the page to its good end, and returns the error that it prints."""
    for block in blocks(PAGE):
        (tmp_path / block.title).write_text(block.text)

    def run(*command: str, **environ: str) -> list[float]:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path), **environ}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return found(done.stdout)

    return run


def found(output: str) -> list[float]:
    return [float(error) for error in re.findall(r"error ([\d.]+)$", output, re.MULTILINE)]


@pytest.mark.gate
def test_a_script_of_torchrun_and_its_port_end_alike(errors, run_warm, tmp_path):
    before = errors(*DISTRUN, "--torch-backend", *PYTHON, "ddp.py")
    assert len(before) == 1
    assert found(run_warm("torch", 2, tmp_path / "ported.py")) == before


def test_torchrun_comes_to_the_same(errors):
    torchrun = errors(*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ddp.py")
    assert len(torchrun) == 1
    assert errors(*DISTRUN, *PYTHON, "ddp.py") == torchrun


def test_a_script_of_accelerate_learns_as_well_as_under_its_own_launcher(errors):
    pytest.importorskip("accelerate")
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--main_process_port", "0")
    both = errors(*PYTHON, *launch, "accelerated.py") + errors(*DISTRUN, "--torch-backend", *PYTHON, "accelerated.py")
    assert len(both) == 2
    assert max(both) < 0.1


def test_a_script_of_tf_distribute_learns_as_well_as_its_port(errors):
    pytest.importorskip("tf_keras")
    before = errors(*DISTRUN, "--tf-config", *PYTHON, "mirrored.py", TF_USE_LEGACY_KERAS="1")
    assert len(before) == 2
    after = errors(*DISTRUN, *PYTHON, "ported_keras.py", KERAS_BACKEND="tensorflow")
    assert len(after) == 1
    assert max(before + after) < 0.1
