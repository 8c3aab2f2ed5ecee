"""AsyncOptimizer of Keras on the servers of a job of its own: other jobs have none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")
PROGRAM = Path(__file__).parent / "programs" / "keras_workers.py"
TIMEOUT = 400.0  # seconds


def run(backend, *line):
    environ = {**os.environ, "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "distrun.runner", *line]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT, check=False)


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_workers_train_on_servers_as_one_process_does(backend):
    job = run(backend, "-np", "2", "--servers", "2", sys.executable, str(PROGRAM))
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["[0] all is well", "[1] all is well"]


def test_jax_is_refused_with_what_can_be_used():
    code = "import keras, distrun.keras as d; d.init(); d.AsyncOptimizer(keras.optimizers.SGD())"
    job = run("jax", "-np", "1", "--servers", "1", sys.executable, "-c", code)
    assert job.returncode == 1
    assert "AsyncOptimizer is not offered on Keras's backend jax: use tensorflow or torch" in job.stderr
