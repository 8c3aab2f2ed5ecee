"""Refusals of --auto: with the reason, the lines to write instead, and exit status 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate
PROGRAM = Path(__file__).parent / "programs" / "torch_refusals.py"
DEADLINE = 600.0  # seconds; far more than it takes, so that a busy machine fails no test

REASONS = {
    "sliced_by_hand": "does not come from a DataLoader",
    "iterable": "Stream is an IterableDataset",
    "own_batch_sampler": "Mine is a batch sampler of the script's own",
    "no_batches": "batch_size=None",
    "unlike_samples": "does not draw the same samples on all ranks",
    "unlike_data": "the data set is not the same on all ranks",
    "small_batches": "2, is not more than the number of ranks, 2",
    "cycled": "no optimizer had been made",
    "trains_in_evaluation_mode": "the model was in evaluation mode",
    "evaluates_without_saying_so": r"backward\(\) was not called",
    "shared_parameters": "two optimizers have parameters in common",
    "no_optimizer": "there is no optimizer",
    "contrasts_samples": "samples are compared with each other",
    "root_of_a_mean": "no sum or mean",
    "normalised_inputs": r"the mean of the batch's samples \(torch_refusals.py:\d+\), which carries no gradient",
    "normalised_weights": r"the sum of the batch's samples \(torch_refusals.py:\d+\)",
    "weights_of_the_batch": r"the sum of the batch's samples \(torch_refusals.py:\d+\)",
    "scaled_inputs": r"the maximum of the batch's samples \(torch_refusals.py:\d+\)",
    "statistics_in_the_second_loss": r"the mean of the batch's samples \(torch_refusals.py:\d+\)",
    "new_loss_in_the_middle": "appears in the middle of an epoch",
    "vector": r"backward\(\) of a tensor of shape \(5,\)",
    "noise_on_the_weights": "the weights of the ranks differ after step .*: bias. Something in the script",
    "running_statistics_of_the_part": "the buffers of the ranks differ after step .*: mean. The script computes them",
    "clamped_by_a_hook": r"a hook of a gradient \(register_hook\) does more than to scale it",
    "clamped_when_accumulated": "changes a gradient before the ranks' are averaged",
    "steps_in_backward": r"step\(\) is called while backward\(\) is running",
    "second_derivatives_of_weights": "gives the gradients of weights by this rank's part alone",
    "process_group": "it calls torch.distributed.init_process_group",
    "counted_after_the_first_batch": "is now by .*: it is counted among the samples",
    "hardest_samples": r"are ordered, or compared with each other \(TopkBackward0\)",
    "loss_within_a_function": r"computed from the batch within one function \(SummedBackward\)",
    "learned_weight_of_a_mixture": "multiplied by a number that has a gradient",
    "second_half_of_the_batch": r"a weight of shape \[3, 6\] gets a gradient of norm .*, where that of the batch has",
    "decides_by_the_loss_of_a_part": r"decides by a statistic \(cross_entropy\) .* \(torch_refusals.py:\d+\)",
    "decides_by_a_count_of_a_part": r"decides by the sum of the batch's samples \(torch_refusals.py:\d+\)",
    "backward_of_every_three_samples": r"one rank calls backward\(\) where another does not",
    "skips_a_batch_on_one_rank": r"rank 0 is in call 1 of backward\(\) on batch 19 of .*, and rank 1 .* on batch 20 of",
    "second_loader_from_the_middle": "one of them in the middle of its epoch",
}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("distrun"), "-q", *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE)


@pytest.fixture(scope="module")
def refusals():
    pytest.importorskip("torch")
    ended = run("--auto", "-np", "2", sys.executable, str(PROGRAM), *REASONS)
    assert ended.returncode == 0, ended.stderr
    return dict(re.findall(r"^\[0\] (\w+): (.*)$", ended.stdout, re.MULTILINE))


@pytest.mark.parametrize("name", REASONS)
def test_a_training_that_cannot_be_right_is_refused(refusals, name):
    assert re.match(f"2: .*{REASONS[name]}", refusals[name]), refusals[name]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("try:\n    import accelerate\nexcept Exception:\n    pass\nprint('runs')\n")
    return str(path)


def test_a_refused_script_ends_on_all_ranks_with_status_2_and_one_text(script):
    ended = run("--auto", "-np", "2", sys.executable, script)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(re.findall(r"^\[\d\] distrun --auto: refused: ", ended.stderr, re.MULTILINE)) == 1
    assert "train.py:2 imports accelerate: accelerate distributes by itself" in ended.stderr
    assert "distrun -np N python script.py" in ended.stderr


def test_a_world_of_one_runs_the_script_as_it_is(script):
    ended = run("--auto", "-np", "1", sys.executable, script)
    assert (ended.returncode, ended.stdout) == (0, "[0] runs\n")


@pytest.mark.parametrize(("words", "seconds"), [([], "600"), (["--stall-timeout", "0"], "0")])
def test_a_rank_that_waits_for_another_gives_up_after_ten_minutes_unless_told_otherwise(tmp_path, words, seconds):
    path = tmp_path / "train.py"
    path.write_text("import os\nprint(os.environ['DISTRUN_STALL_TIMEOUT'])")
    ended = run("--auto", *words, "-np", "1", sys.executable, str(path))
    assert ended.stdout == f"[0] {seconds}\n"


def test_what_would_be_refused_is_explained_without_running_the_script(script):
    ended = run("--auto=explain", "-np", "2", sys.executable, script)
    assert ended.returncode == 2
    assert "train.py:2 imports accelerate" in ended.stdout
    assert "runs" not in ended.stdout


def test_what_would_be_changed_is_explained(tmp_path):
    path = tmp_path / "train.py"
    lines = [
        "import torch",
        "loader = torch.utils.data.DataLoader([1])",
        "for x, y in loader:",
        "    loss.backward()",
        "    n += len(y)",
        "for x, y in loader:",
        "    m += 1",
        "print(m / len(train_set), n / len(train_set))",
    ]
    path.write_text("\n".join(lines))
    ended = run("--auto=explain", "-np", "2", sys.executable, str(path))
    assert ended.returncode == 0
    assert "train.py:2: DataLoader: its batches are divided among the ranks" in ended.stdout
    assert re.findall(r"train.py:(\d): (.*) divides", ended.stdout) == [("8", "n / len(train_set)")]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--auto", "-np", "2", "sleep", "3"], "--auto cannot run 'sleep 3'"),
        (["--auto", "--elastic", "-np", "2", "python", "x.py"], "--auto cannot be elastic"),
        (["--auto", "--horovod", "-np", "2", "python", "x.py"], "--auto is for plain scripts"),
        (["--auto=best", "-np", "2", "python", "x.py"], "'best' is not one of 'global', 'scale', 'explain'"),
    ],
)
def test_commands_that_cannot_be_are_refused_by_the_launcher(words, why):
    ended = run(*words)
    assert ended.returncode == 2
    assert why in ended.stderr
