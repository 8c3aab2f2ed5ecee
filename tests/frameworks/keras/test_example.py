"""The example that a newcomer reads first does what it says, on every backend, and others on one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytestmark = pytest.mark.feature_group("Keras")

EXAMPLE = Path(__file__).parents[3] / "examples" / "keras_digits.py"


def check(done):
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("... ok") == 3
    assert "FAILED" not in done.stdout


@pytest.mark.feature("example")
def test_the_digits_are_learned_and_all_checks_hold(launch, backend):
    pytest.importorskip(backend)
    check(launch(backend, EXAMPLE, "--check", "--epochs", "6"))


def test_alone_and_from_a_checkpoint(launch, tmp_path):
    pytest.importorskip("torch")
    arguments = ["--check", "--epochs", "6", "--checkpoint", str(tmp_path / "digits.keras")]
    check(launch("torch", EXAMPLE, *arguments, size=0))
    assert (tmp_path / "digits.keras").exists()


def test_a_rank_dies_and_nothing_is_lost(launch):
    pytest.importorskip("torch")
    elastic = EXAMPLE.with_name("keras_digits_elastic.py")
    done = launch("torch", elastic, "--check", "--epochs", "6", "--kill", "2:9", elastic=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("... ok") == 4
    assert "rank 1 dies at batch 9 of epoch 2" in done.stdout


@pytest.mark.feature("masked language model of keras-hub", backend="tensorflow")
def test_ranks_learn_to_fill_in_words_step_by_step_like_one_process(launch, tmp_path):
    for needed in ("tensorflow", "keras_hub", "tensorboard"):
        pytest.importorskip(needed)
    text, saved, logs = tmp_path / "mine.txt", tmp_path / "bert.keras", tmp_path / "logs"
    text.write_text("the quick brown fox jumps over the lazy dog , and the dog sleeps on . " * 1000)
    small = ["--epochs", "1", "--words", "50", "--layers", "1", "--width", "32", "--batch-size", "4"]
    paths = ["--text", str(text), "--save", str(saved), "--log-dir", str(logs)]
    done = launch("tensorflow", EXAMPLE.with_name("keras_mlm.py"), *small, *paths, "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("... ok") == 2
    assert "in 50 steps" in done.stdout
    assert "of the words masked in other text" in done.stdout
    assert saved.exists()
    assert len(list(logs.glob("train/events.*"))) == 1, "one rank writes for TensorBoard"
