"""The TensorFlow face on two ranks; programs/collectives.py and training.py tell what is checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from session.tiers import one_in_gate

pytestmark = pytest.mark.feature_group("TensorFlow")

COLLECTIVES = {
    "allreduce": ["allreduce_reduces", "inputs_stay_as_they_were", "a_variable_that_was_assigned_a_result_is_its_own"],
    "allreduce of tf.IndexedSlices": ["slices_of_everybody_are_put_together"],
    "allgather": ["allgather_puts_rows_one_after_the_other"],
    "broadcast": ["broadcast_copies_the_roots_tensor"],
    "alltoall": ["alltoall_sends_each_rank_its_rows"],
    "reducescatter": ["reducescatter_keeps_an_even_share_of_rows"],
    "a compressor of one's own": ["a_compressor_of_ones_own_is_called"],
    "gradients of collectives": ["gradients_flow_back", "gradients_have_gradients"],
}
GRAPHS = {
    "collectives in loops and branches": ["loops_and_branches_hold_collectives"],
    "tf.function traced again by one rank": [
        "a_rank_may_trace_anew_by_itself",
        "a_rank_may_know_shapes_that_another_one_does_not",
        "functions_are_told_apart",
    ],
    "SavedModel with a collective": ["a_stored_function_still_reduces"],
    "an error for ranks that disagree": ["ranks_that_disagree_get_an_error_and_go_on"],
    "an error for jit_compile=True": ["xla_is_refused_while_tracing"],
}
TRAINING = {
    "DistributedGradientTape": ["ranks_together_get_the_result_of_one_process", "a_wrapped_tape_is_a_tape"],
    "DistributedGradientTape with embeddings": ["gradients_of_embeddings_stay_sparse_unless_told"],
    "broadcast_variables": ["variables_start_as_the_roots"],
    "SyncBatchNormalization": ["batches_are_normalized_together"],
    "local variables and layers": [
        "gradients_of_local_sources_stay_on_their_rank",
        "layers_may_stay_local_and_be_built_later",
    ],
    "use_generic_names": ["variables_may_have_other_names_on_each_rank"],
    "compressors of one's own": ["a_compressor_of_the_users_is_called"],
    "tf.compat.v1 optimizers, backward_passes_per_step": ["optimizers_of_tensorflow_1_sum_over_several_passes"],
    "an error for ranks with gradients of different variables": ["gradients_of_different_variables_are_not_mixed_up"],
}
TRAINING_IN_GRAPHS = {
    "a smaller last batch on one rank": ["a_rank_may_have_a_smaller_last_batch"],
    "tf.compat.v1 optimizers": [
        "optimizers_of_tensorflow_1_reduce_in_graphs",
        "optimizers_of_like_networks_are_told_apart_in_a_graph",
        "optimizers_of_tensorflow_1_sum_over_several_passes_in_graphs",
        "variables_of_an_optimizer_of_tensorflow_1_may_be_local",
    ],
    "Keras optimizers in a loop of one's own": ["optimizers_of_keras_reduce_too"],
    "an error for ranks with different models": ["ranks_with_different_models_are_told_where"],
    "an error when a rank leaves early": ["a_rank_that_leaves_early_is_missed"],
}
SESSIONS = {
    "independent collectives in a session": [
        "many_independent_collectives_need_no_thread_each",
        "a_function_in_a_graph_needs_none_either",
        "large_tensors_hold_no_thread",
        "ranks_may_start_them_in_opposite_orders",
        "training_and_metrics_may_be_fetched_together",
    ],
    "gradients of collectives in a session": [
        "gradients_of_all_kinds_are_computed_where_only_they_are_fetched",
        "gradients_of_one_groups_results_may_be_taken_one_by_one",
        "a_collectives_gradient_may_be_taken_twice",
    ],
    "broadcast_ in graphs": [
        "variables_are_overwritten_when_the_result_is_computed",
        "variables_of_a_function_are_overwritten_and_returned",
    ],
    "TensorFlow's classes of errors": ["errors_are_those_that_scripts_of_tensorflow_1_expect"],
}


def rows(table: dict[str, list[str]], suffix: str = "", ways: tuple[str, ...] = ("",)) -> list:
    """A parameter for each row of the feature matrix: the checks that prove it."""
    return [
        pytest.param(
            {f"{check}{way}" for check in checks for way in ways},
            marks=pytest.mark.feature(f"{feature}{suffix}"),
            id=feature.replace(" ", "-"),
        )
        for feature, checks in table.items()
    ]


def rows_of_both(table: dict[str, list[str]]) -> list:
    """Rows whose checks are made eagerly, and in a graph."""
    return rows(table, ", eager and in tf.function", (" (eager)", " (tf.function)"))


@pytest.mark.gate
@pytest.mark.parametrize("mechanism", one_in_gate("auto", "numpy_function"))
@pytest.mark.parametrize("checks", rows_of_both(COLLECTIVES) + rows(GRAPHS))
def test_a_collective_does_what_numpy_does_on_everybodys_arrays(checks_of, mechanism, checks):
    assert checks <= checks_of("collectives", mechanism)


@pytest.mark.gate
@pytest.mark.parametrize("checks", rows_of_both(TRAINING) + rows(TRAINING_IN_GRAPHS))
def test_ranks_train_as_one_process_does(checks_of, checks):
    assert checks <= checks_of("training")


@pytest.mark.gate
@pytest.mark.parametrize("checks", rows(SESSIONS))
def test_a_session_of_tensorflow_1_runs_them(checks_of, checks):
    assert checks <= checks_of("sessions")


@pytest.mark.feature("process sets")
def test_a_process_set_is_reduced_for_itself(run_job, programs):
    lines = run_job([str(programs / "sets.py")], 3)
    assert lines.count("good: ") == 13


@pytest.mark.feature("the script of 2018: MonitoredTrainingSession and hooks")
def test_the_script_of_2018_runs_with_only_the_import_changed(run_job, programs, tmp_path):
    run_job([str(programs / "classic.py")], 2, {"CHECKPOINT_DIR": str(tmp_path)})
    assert list(tmp_path.glob("model.ckpt-6.*"))


@pytest.mark.feature("hooks that fetch averages, and a second run from the checkpoint of rank 0")
def test_hooks_of_tensorflow_1_train_watch_and_begin_again(run_job, programs, tmp_path):
    run_job([str(programs / "hooks.py")], 2, {"CHECKPOINT_DIR": str(tmp_path)})
    assert list(tmp_path.glob("model.ckpt-40.*"))


@pytest.mark.feature("a training loop of one's own, from start to end")
def test_the_example_does_what_it_says(run_job, tmp_path):
    pytest.importorskip("sklearn")
    script = Path(__file__).parents[3] / "examples" / "tensorflow_tape_digits.py"
    weights = tmp_path / "digits.weights.h5"
    shown = run_job([str(script), "--check", "--checkpoint", str(weights)], 2)
    assert shown.count("... ok") == 3
    assert "FAILED" not in shown
    assert weights.exists()
