"""Checkpoints of scripts of torch.distributed, and of an example."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "programs" / "checkpoints" / "ddp_checkpoint.py"
EXAMPLE = Path(__file__).parents[3] / "examples" / "torch_checkpoint.py"
DISTRUN = [sys.executable, "-m", "distrun.runner", "-np"]


@pytest.mark.parametrize("mode", [[], ["sharded"]])
def test_scripts_of_torch_distributed_have_checkpoints_too(run_script, tmp_path, mode):
    def run(folder: str, steps: int, size: int = 2) -> tuple[int, float]:
        done = run_script([*DISTRUN, str(size)], str(SCRIPT), str(tmp_path / folder), str(steps), *mode)
        start, total, _ = done.stdout.partition("RESULT")[2].split()
        return int(start), float(total)

    assert run("a", 4)[0] == 0
    at_once = run("b", 8)
    resumed = run("a", 8)
    assert resumed == (4, at_once[1])
    assert run("b", 8, size=3) == (8, at_once[1])


@pytest.fixture
def restarting(run_script):
    """Runs a script on two ranks that may be started again; returns what it has printed."""

    def run(*arguments: str, **environ: str) -> str:
        done = run_script([*DISTRUN, "2", "--max-restarts", "2"], *arguments, **environ)
        fails = "FAIL_AT" in environ or "--fail-at" in arguments
        assert done.stderr.count("2 ranks start again; ") == fails, done.stdout + done.stderr
        return done.stdout

    return run


def test_ranks_of_torch_distributed_that_are_started_anew_go_on_as_if_nothing_had_happened(restarting, tmp_path):
    undisturbed = restarting(str(SCRIPT), str(tmp_path / "a"), "12").partition("RESULT")[2].split()
    start, *result = restarting(str(SCRIPT), str(tmp_path / "b"), "12", FAIL_AT="8").partition("RESULT")[2].split()
    assert 6 <= int(start) <= 8  # rank 0 was at most a step behind, and one checkpoint may not have been written yet
    assert result == [undisturbed[1], "1"]


def test_the_example_goes_on_from_its_last_checkpoint(restarting, tmp_path):
    output = restarting(str(EXAMPLE), str(tmp_path), "--fail-at", "120")
    assert "from step 0, restarted 0 times" in output
    assert "from step 100, restarted 1 times" in output
    assert re.search(r"step 300: accuracy (9\d|100)\.\d%", output)
