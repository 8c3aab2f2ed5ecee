"""Scripts written for horovod.tensorflow and horovod.tensorflow.keras run unchanged; they check what they compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.gate
def test_a_tape_in_a_tf_function_trains(run_script, tmp_path):
    printed = run_script("tensorflow", "tf2_tape", str(tmp_path / "checkpoint"))
    assert "Step #50" in printed
    assert printed.count("refused:") == 2


@pytest.mark.gate
def test_fit_with_callbacks_trains_and_goes_on_from_a_checkpoint(run_script, tmp_path):
    printed = run_script("tensorflow", "tf2_keras", str(tmp_path))
    assert printed.count("finished gradual learning rate warmup to 0.01") == 1  # by rank 0


def test_a_session_of_tensorflow_1_with_hooks_trains(tmp_path):
    assert run_alone("tf1_hooks", tmp_path).count("step 150 reached") == 2


def test_fit_of_keras_2_trains_and_goes_on_from_a_checkpoint(tmp_path):
    pytest.importorskip("tf_keras")
    assert "finished gradual learning rate warmup to 0.01" in run_alone("keras2", tmp_path)


def run_alone(script: str, folder: Path) -> str:
    """Run a script in a job of its own: TensorFlow is set up for it in another way."""
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), str(folder)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "DISTRUN_STALL_TIMEOUT": "120"}
    done = subprocess.run(
        [sys.executable, "-m", "distrun.runner", "--horovod", "-np", "2", *command],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
