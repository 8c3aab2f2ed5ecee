"""Scripts written for horovod.torch run unchanged; the scripts check what they compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from session.tiers import one_in_gate

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.gate
@pytest.mark.parametrize(
    "arguments",
    one_in_gate([], ["--fp16-allreduce", "--use-sum"], ["--gradient-predivide-factor", "2"]),
    ids=["average", "sum in half precision", "predivided"],
)
def test_digits_are_learned(run_script, arguments):
    printed = run_script("torch", "torch_mnist", *arguments)
    assert printed.count("is done") == 2
    assert printed.count("Test set:") == 2


@pytest.mark.gate
def test_a_training_that_was_interrupted_ends_where_one_that_was_not_does(run_script, tmp_path):
    formats = [["--checkpoint-format", str(tmp_path / f"{name}-{{epoch}}.tar")] for name in ("whole", "parts")]
    whole = run_script("torch", "torch_imagenet", *formats[0])
    run_script("torch", "torch_imagenet", *formats[1], "--epochs", "2")
    parts = run_script("torch", "torch_imagenet", *formats[1])
    assert whole.startswith("epochs 0-4 ")
    assert parts == whole.replace("epochs 0-4", "epochs 2-4")


@pytest.mark.gate
def test_handles_errors_pickles_and_objects_are_as_scripts_expect(run_script):
    run_script("torch", "torch_odds")


@pytest.mark.gate
def test_a_parameter_without_a_gradient_has_one_of_zeros(run_script):
    run_script("torch", "torch_unused")


def test_the_command_alone_makes_a_script_find_us(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import horovod.torch as hvd\nhvd.init()\nprint(hvd.rank(), 'of', hvd.size(), hvd.__file__)\n")
    command = [sys.executable, "-m", "distrun.runner", "--horovod", "-np", "2", sys.executable, str(script)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HOROVOD_CYCLE_TIME": "3"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split(" /")[0] for line in done.stdout.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]
    assert "as-horovod/horovod/torch/__init__.py" in done.stdout
    assert done.stderr.count("HOROVOD_CYCLE_TIME changes nothing: ") == 1
