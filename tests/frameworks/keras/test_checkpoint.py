"""Checkpoints of models and optimizers of both Kerases; see programs/checkpoint.py for the behaviours."""

from __future__ import annotations

from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "checkpoint.py"


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch", "tf_keras"])
def test_models_and_optimizers_come_back(launch, tmp_path, backend):
    pytest.importorskip(backend)
    done = launch(backend, PROGRAM, str(tmp_path), size=0)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert "all is well" in done.stdout
