"""Scripts written for horovod.tensorflow and horovod.tensorflow.keras run unchanged; they check what they compute."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow")


@pytest.mark.gate
def test_a_tape_in_a_tf_function_trains(run_script, tmp_path):
    printed = run_script("tensorflow", "tf2_tape", str(tmp_path / "checkpoint"))
    assert "Step #50" in printed
    assert printed.count("refused:") == 2


@pytest.mark.gate
def test_fit_with_callbacks_trains_and_goes_on_from_a_checkpoint(run_script, tmp_path):
    printed = run_script("tensorflow", "tf2_keras", str(tmp_path))
    assert printed.count("finished gradual learning rate warmup to 0.01") == 1  # by rank 0
