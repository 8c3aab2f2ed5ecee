"""The example with a language model does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras_hub")
pytest.importorskip("tensorboard")
pytestmark = pytest.mark.feature_group("Keras")

EXAMPLE = Path(__file__).parents[3] / "examples" / "keras_mlm.py"


@pytest.mark.feature("masked language model of keras-hub", backend="tensorflow")
def test_ranks_learn_to_fill_in_words_step_by_step_like_one_process(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("the quick brown fox jumps over the lazy dog , and the dog sleeps on . " * 1000)
    saved, logs = tmp_path / "bert.keras", tmp_path / "logs"
    small = ["--epochs", "1", "--words", "50", "--layers", "1", "--width", "32", "--batch-size", "4"]
    command = [
        sys.executable,
        str(EXAMPLE),
        *small,
        "--text",
        str(text),
        "--save",
        str(saved),
        "--log-dir",
        str(logs),
        "--check",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "distrun.runner", "-np", "2", *command],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("... ok") == 2
    assert "in 50 steps" in done.stdout
    assert "of the words masked in other text" in done.stdout
    assert saved.exists()
    assert len(list(logs.glob("train/events.*"))) == 1, "one rank writes for TensorBoard"
