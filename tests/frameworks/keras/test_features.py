"""All features of Keras work on several ranks: the same bits on all, equal to one process on the combined batch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.feature_group("Keras")
of_both_kerases = pytest.mark.backends("tensorflow", "jax", "torch", "tf_keras")


def rows(*names, marks=()):
    """Behaviours that are rows of the table of features."""
    return [pytest.param(name, marks=[pytest.mark.feature(name), *marks]) for name in names]


def others(*names):
    """Rows that show in other ways what those of the gate show."""
    return rows(*names, marks=[pytest.mark.full])


def equals_one_process(ranks):
    assert all(rank["same"] for rank in ranks)
    assert ranks[0]["difference"] <= 1e-5
    assert ranks[0]["moved"] > 1e-3


@pytest.mark.gate
@pytest.mark.behaviours(
    *rows("fit", "embeddings"),
    *others("op=Sum", "last batch smaller", "train_on_batch", "custom train_step", "run_eagerly", "jit_compile=False"),
    *others("clipnorm", "global_clipnorm", "moving averages of weights (EMA)", "learning-rate schedule"),
    *others("LossScaleOptimizer", "Lion", "Muon", "MultiOptimizer", "frozen layers and another compile"),
)
def test_training_equals_one_process_with_one_reduction_a_step(ranks):
    equals_one_process(ranks)
    assert [rank["reductions"] for rank in ranks] == [rank["steps"] for rank in ranks]


@pytest.mark.gate
@pytest.mark.feature("custom loop")
@of_both_kerases
@pytest.mark.behaviours("custom loop")
def test_a_loop_of_the_users_own(ranks):
    equals_one_process(ranks)
    assert ranks[0]["reductions"] == 6


@pytest.mark.backends("tensorflow", "jax")
@pytest.mark.feature("steps_per_execution")
@pytest.mark.behaviours("steps_per_execution")
def test_several_steps_per_execution(ranks):
    equals_one_process(ranks)


@pytest.mark.gate
@pytest.mark.feature("jit_compile=True")
@of_both_kerases
@pytest.mark.behaviours("jit_compile=True")
def test_jit_compile_is_turned_off_with_one_warning_where_it_cannot_be(ranks, backend):
    equals_one_process(ranks)
    assert [rank["warned"] for rank in ranks] == [int(backend in ("tensorflow", "tf_keras")), 0]


@pytest.mark.gate
@pytest.mark.behaviours(*rows("backward_passes_per_step"), *others("gradient accumulation"))
def test_accumulated_gradients_are_reduced_once_per_update(ranks):
    equals_one_process(ranks)
    assert [rank["reductions"] * 3 for rank in ranks] == [rank["steps"] for rank in ranks]


@pytest.mark.feature("sparse_as_dense")
@pytest.mark.backends("tensorflow")
@pytest.mark.behaviours("sparse_as_dense")
def test_sparse_gradients_reduced_as_dense_ones(ranks):
    equals_one_process(ranks)


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.feature("BatchNormalization and Dropout")
@pytest.mark.behaviours("BatchNormalization and Dropout")
def test_layers_that_depend_on_the_batch_train(ranks):
    assert all(rank["same"] for rank in ranks)


@pytest.mark.gate
@pytest.mark.behaviours(
    *rows("model without input shape", "clones are distributed"),
    pytest.param("model with a layer that is never used", marks=pytest.mark.full),
)
def test_all_ranks_end_with_the_same_weights(ranks):
    assert all(rank["same"] for rank in ranks)


@pytest.mark.gate
@of_both_kerases
@pytest.mark.behaviours(*rows("the optimizer of a trained model"))
def test_the_optimizer_of_a_trained_model_may_be_made_distributed(ranks):
    assert all(rank["same"] for rank in ranks)


@pytest.mark.gate
@pytest.mark.feature("mixed precision, an infinity on one rank")
@of_both_kerases
@pytest.mark.behaviours("mixed precision, an infinity on one rank")
def test_all_ranks_skip_the_steps_in_which_one_has_an_infinity(ranks, backend):
    for rank in ranks:
        for updates, *others in rank.values():  # of each kind of optimizer
            assert others == [True, True, 2.0**13]
            assert updates == 4 or backend == "tf_keras"


@pytest.mark.backends("tensorflow")
@pytest.mark.feature("process sets")
def test_ranks_of_a_process_set_train_together_beside_the_others(launch, backend):
    done = launch(backend, Path(__file__).parent / "programs" / "process_sets.py", size=3)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    assert done.stdout.count("as one process does") == 3


# Layers that stay local, and compressors of the user's ---------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.feature("local layers")
@of_both_kerases
@pytest.mark.behaviours("local layers")
def test_gradients_of_local_layers_stay_on_their_rank_and_the_others_are_averaged(ranks):
    for rank in ranks:
        assert rank.keys() == {"True", "False"}  # scale_local_gradients
        for is_shared, distance, distance_of_own, is_local_shared in rank.values():
            assert (is_shared, is_local_shared) == (True, False)
            assert distance < 1e-6
            assert distance_of_own < 1e-6


@pytest.mark.feature("local layers")
@of_both_kerases
@pytest.mark.behaviours("local layers, built later")
def test_layers_may_be_built_after_they_were_declared_local(ranks):
    assert ranks == [[True, False]] * 2


@pytest.mark.gate
@pytest.mark.feature("compressors of one's own")
@of_both_kerases
@pytest.mark.behaviours("a compressor of one's own")
def test_a_compressor_of_the_users_is_called(ranks):
    for rank in ranks:
        assert rank == {"same": True, "called": True, "value": 1.5}


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("saved files load without distrun")
@pytest.mark.behaviours("saved files name the plain optimizer")
def test_saved_files_name_the_plain_optimizer(ranks):
    for rank in ranks:
        assert rank == {
            "Adam": ["keras.optimizers", False, 0.0],
            "Slowing": ["tests>Slowing", False, 0.0],
            "LossScaleOptimizer": ["keras.optimizers", False, 0.0],
        }


@pytest.mark.gate
@pytest.mark.feature("load_model resumes exactly")
@pytest.mark.behaviours("load_model resumes exactly")
def test_a_loaded_model_goes_on_as_if_never_saved(ranks):
    for rank in ranks:
        assert rank == {"Adam": [0.0, True], "Slowing": [0.0, True]}


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.behaviours("load_model under mixed precision")
def test_a_loaded_model_of_mixed_precision_goes_on(ranks):
    for rank in ranks:
        assert rank == {"difference": 0.0, "same": True}


@pytest.mark.gate
@pytest.mark.behaviours("pickled optimizers are plain")
def test_pickled_optimizers_are_plain(ranks):
    assert ranks == [[True, 0.01]] * 2


# Callbacks and values -------------------------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.feature("MetricAverageCallback")
@of_both_kerases
@pytest.mark.behaviours("MetricAverageCallback")
def test_metrics_of_training_and_validation_are_averaged(ranks):
    for rank in ranks:
        assert rank["difference"] < 1e-5 < rank["own"]


@pytest.mark.gate
@pytest.mark.behaviours("MetricAverageCallback, other metrics on one rank")
def test_ranks_with_different_metrics_are_told_which(ranks):
    for rank in ranks:
        assert "MismatchError: the metrics to average differ" in rank
        assert "val_loss on rank 0; missing on rank 1" in rank


@pytest.mark.gate
@pytest.mark.feature("LearningRateWarmupCallback")
@pytest.mark.behaviours("LearningRateWarmupCallback")
def test_the_learning_rate_rises_to_that_of_all_ranks(ranks):
    for rank in ranks:
        assert rank["rates"] == [0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.8, 0.8, 0.8, 0.8]
        assert rank["logged"] == pytest.approx([0.6, 0.8, 0.8])
        assert rank["same"]


@pytest.mark.gate
@pytest.mark.feature("LearningRateScheduleCallback")
@of_both_kerases
@pytest.mark.behaviours("LearningRateScheduleCallback with momentum correction")
def test_the_momentum_is_corrected_as_computed_by_hand(ranks):
    for rank in ranks:
        for difference, rates in rank.values():
            assert difference < 1e-5
            assert rates == [0.5, 0.05]


@pytest.mark.gate
@pytest.mark.feature("BestModelCheckpoint")
@pytest.mark.feature("OnRankZero")
@of_both_kerases
@pytest.mark.behaviours("BestModelCheckpoint and OnRankZero")
def test_only_rank_0_writes(ranks):
    assert [rank["files"] for rank in ranks] == [[True] * 3, [False] * 3]
    assert all(rank["same"] for rank in ranks)


@pytest.mark.gate
@pytest.mark.feature("collectives on values")
@of_both_kerases
@pytest.mark.behaviours("collectives on values")
def test_values_of_all_kinds_travel(ranks):
    for number, rank in enumerate(ranks):
        assert rank == {
            "allreduce": [1.5, 2.0],
            "sum": 3.0,
            "allgather": [0, 1],
            "broadcast": [1.0],
            "reducescatter": [2.0 * number],
        }


@pytest.mark.gate
@of_both_kerases
@pytest.mark.behaviours("refusals")
def test_what_cannot_be_is_refused_with_the_remedy(ranks, backend):
    expected = {
        "wrapped twice": "wrap an optimizer once",
        "foreign": "not features.Foreign: give it one such as keras.optimizers.Adam",
        "class": "give it one such as",
        "op": "use Average or Sum",
        "compression": "choose one of these",
        "predivide": "belongs to op=Average",
        "passes": "must be a whole number greater than 0",
        "built": "has been built already: set gradient_accumulation_steps",
        "unbuilt": "call model.build(input_shape)",
        "global variables": "call broadcast_variables(",
        "average and op": "drop average",
        "schedule": "cannot set the learning rate of this SGD",
        "OnRankZero": "give it to all ranks",
        "a callback of Keras 3": "set TF_USE_LEGACY_KERAS=1 if",
    }
    for rank in ranks:
        assert len(rank) == (4 if backend == "tf_keras" else 13)
        for name, error in rank.items():
            assert error.startswith("UsageError: "), name
            assert expected[name] in error
