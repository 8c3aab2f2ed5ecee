"""Programs that people have reported, or that show what they reported, print what is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test


def printed(program: str, size: int = 2) -> list[str]:
    """Run a program of torch on ranks, to their successful end; return the lines that they printed, in order."""
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-m", "distrun.runner", "-np", str(size), sys.executable, f"{PROGRAMS}/{program}.py"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DISTRUN_STALL_TIMEOUT": "120"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(re.sub(r"^\[\d\] ?", "", line) for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("program", "of_each"),
    [
        ("debug_detail", "{rank} [4.0, 4.0, 4.0, 4.0] 32.0 32.0"),
        ("bucketed_by_inductor", "{rank} equal True"),
        ("functional_operators", "{rank} wrong: [] not called: []"),
        ("group_timeout", "{rank} given up: True"),
    ],
)
def test_programs_of_torch_distributed(program, of_each):
    assert printed(program) == [of_each.format(rank=rank) for rank in range(2)]


def test_methods_of_process_groups_do_what_those_of_gloo_do():
    assert printed("group_methods", size=1) == ["other than on gloo: {}"]
