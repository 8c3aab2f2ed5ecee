"""The situations of torch under `--auto`: none but those known today is wrong, crashes or hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # not a package: there is none in tests

from records import check, groups, records

SAME = (
    "own_generator_for_loader noise_by_index decision_by_loss_of_shape_one plateau_by_validation weighted_mean "
    "cross_entropy_sum vae_without_noise wgan_gp sign_of_samples_gradient hook_clips_samples_gradient clip_norm "
    "centres_that_are_learned features_by_numpy lookahead collate_pads_to_longest batches_of_numpy sum_over_len "
    "mse_mean_97 mean_plus_norm_of_weights annealed_weight batch_norm_layer_98 gan_two_backwards groups_added_later "
    "adam lbfgs worker_processes least_and_largest_that_all_parts_reach own_optimizer_draws_noise another_sum_is_read "
    "order_by_python_numbers_by_numpy penalty_of_a_mean_loss grad_of_each_output_beside hooks_that_look grad_scaler "
    "weights_of_rows_that_come_late loader_begins_again_in_the_others_epoch evaluation_every_two_steps "
    "cross_entropy_ignore_one_of_weights accumulate_four_clipped"
)
REFUSED = (
    "decision_by_labels early_stopping_by_accuracy_counted end_by_samples_seen divisor_n_minus_one "
    "weights_normalised_to_one constant_batch_size_in_view backward_of_each_row x_grad_by_its_norm "
    "running_mean_of_inputs mse_of_means simclr first_half_labelled ranks_as_targets compiled_batch_statistic "
    "collate_normalises"
)

REHEARSED_SAME = (
    "noise_by_index vae_without_noise wgan_gp centres_that_are_learned collate_pads_to_longest copy_that_fails "
    "first_batch_looked_at"
)
REHEARSED_REFUSED = (
    "divisor_n_minus_one constant_batch_size_in_view x_grad_by_its_norm mse_of_means first_half_labelled "
    "ranks_as_targets collate_normalises autocast_mse_of_means"
)
LATER = (
    "late_batch_term late_divisor curriculum_by_error_of_rows tensor_moved_by_hand prompt_moved_by_sign "
    "universal_perturbation queue_of_outputs hidden_state_of_last_batch centres_by_index_add moco_queue dino_centre "
    "targets_averaged_over_epochs losses_of_samples_kept best_loss_of_each_sample q_priorities_kept relu_of_mean "
    "memory_bank_by_index collate_pads_mean_over_padding"
)
"""The situations that are wrong only after the first batch, which alone is rehearsed."""


@pytest.mark.gate
@pytest.mark.parametrize(
    ("same", "refused", "options"),
    [(SAME, REFUSED, ()), (REHEARSED_SAME, REHEARSED_REFUSED, ("--rehearse",))],
    ids=["tried", "rehearsed"],
)
def test_one_situation_of_each_kind_is_the_same_or_refused(
    same: str, refused: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    expected = dict.fromkeys(same.split(), "same") | dict.fromkeys(refused.split(), "refused")
    found = records(tmp_path, f"/({'|'.join(expected)})$", "--ranks", "2", *options)
    assert {name: each["verdicts"]["2"] for name, each in found.items()} == expected


@pytest.mark.parametrize("group", groups("torch"))
def test_no_situation_is_wrong_crashes_or_hangs_but_those_known_today(group: str, tmp_path: Path) -> None:
    check(group, tmp_path)


@pytest.mark.parametrize("group", groups("torch"))
def test_only_what_comes_later_is_wrong_where_the_first_steps_are_rehearsed(group: str, tmp_path: Path) -> None:
    found = records(tmp_path, f"^{group}/", "--ranks", "2", "--rehearse")
    faults = {name for name, each in found.items() if each["judged"]["2"] not in ("ok", "refused")}
    assert faults == found.keys() & set(LATER.split())
