"""Checkpoints of models and optimizers of both Kerases; see programs/checkpoint.py for the behaviours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "checkpoint.py"


@pytest.mark.gate
@pytest.mark.backends("tensorflow", "jax", "torch", "tf_keras")
def test_models_and_optimizers_come_back(launch, tmp_path, backend):
    pytest.importorskip(backend)
    done = launch(backend, PROGRAM, str(tmp_path), size=0)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert "all is well" in done.stdout


@pytest.mark.backends("torch")
def test_what_compression_has_taken_from_gradients_comes_back(run_ranks, rank_environment, tmp_path, backend):
    pytest.importorskip(backend)
    program = [sys.executable, str(PROGRAM.with_name("residuals.py")), str(tmp_path)]
    done = run_ranks(program, (1, 1), rank_environment(backend))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
