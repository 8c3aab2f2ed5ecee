"""Keras 2 (tf_keras) on two ranks: the same bits on all, equal to one process on the combined batch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tf_keras")
pytestmark = [pytest.mark.feature_group("Keras"), pytest.mark.backends("tf_keras")]

SAVED = {  # whether tf_keras restores the optimizer's state from such a file
    "new.h5": True,
    "new.keras": True,
    "new": False,
    "legacy.h5": True,
    "legacy.keras": False,
    "legacy": False,
}


FULL = [pytest.mark.full]  # shows in other ways what those of the gate show


def proves(row, *names, marks=()):
    """Behaviours that prove a row of the table of features."""
    return [pytest.param(name, marks=[pytest.mark.feature(row), *marks]) for name in names]


@pytest.mark.gate
@pytest.mark.behaviours(
    *proves("fit", "Adam, new"),
    *proves("legacy optimizers", "Adam, legacy"),
    *proves("clipnorm", "momentum and clipnorm, new", "momentum and clipnorm, legacy", marks=FULL),
    *proves("learning-rate schedule", "learning-rate schedule, new", "learning-rate schedule, legacy", marks=FULL),
    *proves("LossScaleOptimizer", "LossScaleOptimizer, new", "LossScaleOptimizer, legacy", marks=FULL),
    *proves("train_on_batch", "train_on_batch", marks=FULL),
    *proves("embeddings", "embeddings", marks=FULL),
)
def test_training_equals_one_process_with_one_reduction_a_step(ranks):
    assert all(rank["same"] for rank in ranks)
    assert ranks[0]["difference"] <= 1e-5
    assert ranks[0]["moved"] > 1e-3
    assert ranks[0]["reductions"] == ranks[0]["steps"]


@pytest.mark.gate
@pytest.mark.feature("scripts for Horovod")
@pytest.mark.behaviours("what scripts for Horovod do")
def test_what_scripts_for_horovod_do(ranks):
    for rank in ranks:
        assert rank == {"same": True, "lr": [0.002, 0.002]}


@pytest.mark.gate
@pytest.mark.feature("backward_passes_per_step")
@pytest.mark.behaviours("backward_passes_per_step")
def test_accumulated_gradients_are_reduced_once_per_update_and_iterations_count_updates(ranks):
    for rank in ranks:
        assert len(rank) == 4
        for same, difference, reductions, iterations in rank.values():
            assert same
            assert difference <= 1e-5
            assert (reductions, iterations) == (4, 4)


@pytest.mark.feature("load_model resumes exactly")
@pytest.mark.feature("saved files load without distrun")
@pytest.mark.behaviours("saved files")
def test_saved_files_name_the_plain_optimizer_and_a_loaded_model_goes_on(ranks):
    for rank in ranks:
        assert rank.keys() == SAVED.keys()
        for name, (is_plain, difference, same, is_of_its_kind) in rank.items():
            assert (is_plain, same, is_of_its_kind) == (True, True, True), name
            assert (difference == 0.0) is SAVED[name], name


@pytest.mark.gate
@pytest.mark.feature("SyncBatchNormalization")
@pytest.mark.behaviours("SyncBatchNormalization")
def test_batches_are_normalized_together(ranks):
    for outputs, state in ranks:
        assert outputs < 1e-5
        assert state < 1e-6


@pytest.mark.gate
@pytest.mark.behaviours("the optimizer decides which Keras is meant")
def test_the_optimizer_decides_which_keras_is_meant(ranks):
    assert ranks == [["keras", [-0.5, 2.0]]] * 2


@pytest.mark.feature("graphs of TensorFlow 1")
def test_the_keras_script_of_2018_runs_with_only_the_import_changed(launch, backend):
    done = launch(backend, Path(__file__).parent / "programs" / "keras2_graphs.py")
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert done.stdout.count("as one process does") == 4
