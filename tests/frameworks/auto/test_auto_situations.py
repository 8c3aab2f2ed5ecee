"""The situations of `situations/run.py` under `--auto`: none but those known today is wrong, crashes or hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SITUATIONS = Path(__file__).with_name("situations")
DEADLINE = 7200.0  # seconds; far more than any group takes, so that a busy machine fails no test
GROUPS = sorted(
    f"{path.parent.name}/{path.name.removesuffix('.py.txt')}"
    for path in SITUATIONS.glob("*/*.py.txt")
    if path.name != "preambles.py.txt"
)
SAME = (
    "own_generator_for_loader noise_by_index decision_by_loss_of_shape_one plateau_by_validation weighted_mean "
    "cross_entropy_sum vae_without_noise wgan_gp sign_of_samples_gradient hook_clips_samples_gradient clip_norm "
    "centres_that_are_learned features_by_numpy lookahead collate_pads_to_longest"
)
REFUSED = (
    "decision_by_labels early_stopping_by_accuracy_counted end_by_samples_seen divisor_n_minus_one "
    "weights_normalised_to_one constant_batch_size_in_view backward_of_each_row x_grad_by_its_norm "
    "running_mean_of_inputs mse_of_means simclr first_half_labelled ranks_as_targets compiled_batch_statistic "
    "collate_normalises"
)


REHEARSED_SAME = "noise_by_index vae_without_noise wgan_gp centres_that_are_learned collate_pads_to_longest"
REHEARSED_REFUSED = (
    "divisor_n_minus_one constant_batch_size_in_view x_grad_by_its_norm mse_of_means first_half_labelled "
    "ranks_as_targets collate_normalises autocast_mse_of_means"
)
LATER = (
    "late_batch_term late_divisor targets_averaged_over_epochs losses_of_samples_kept best_loss_of_each_sample "
    "q_priorities_kept"
)
"""The situations that are wrong only after the first batches, which alone are rehearsed."""


def known_faults(group: str) -> dict[str, str]:
    """Return how the situations of a group that are known to be wrong today are judged, by their names."""
    lines = (SITUATIONS / "known_faults.txt").read_text().splitlines()
    pairs = [line.split(": ") for line in lines if line and not line.startswith("#")]
    return {name.removeprefix(f"{group}/"): fault for name, fault in pairs if name.startswith(f"{group}/")}


def records(folder: Path, pattern: str, *options: str) -> dict[str, dict]:
    """Run the situations whose names match a pattern; return what was found, by their names."""
    path = folder / "records"
    command = [sys.executable, str(SITUATIONS / "run.py"), "--only", pattern, "--json", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert path.exists(), done.stderr[-3000:]
    return {each["name"]: each for each in map(json.loads, path.read_text().splitlines())}


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


@pytest.mark.full
@pytest.mark.parametrize("group", GROUPS)
def test_no_situation_is_wrong_crashes_or_hangs_but_those_known_today(group: str, tmp_path: Path) -> None:
    found = {}
    for name, record in records(tmp_path, f"^{group}/").items():
        faults = [each for each in record["judged"].values() if each not in ("ok", "refused")]
        if faults:
            found[name] = f"{faults[0]} {record['details']}"
    known = known_faults(group)
    assert {name: found[name] for name in found.keys() - known.keys()} == {}, "these are new"
    assert sorted(known.keys() - found.keys()) == [], "these are right now: take them out of known_faults.txt"


@pytest.mark.full
@pytest.mark.parametrize("group", [group for group in GROUPS if group.startswith("torch/")])
def test_only_what_comes_later_is_wrong_where_the_first_steps_are_rehearsed(group: str, tmp_path: Path) -> None:
    found = records(tmp_path, f"^{group}/", "--ranks", "2", "--rehearse")
    faults = {name for name, each in found.items() if each["judged"]["2"] not in ("ok", "refused")}
    assert faults == found.keys() & set(LATER.split())
