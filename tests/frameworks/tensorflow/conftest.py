"""Runs the rank programs here: each checks many behaviours, since every rank spends seconds on the import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

DEADLINE = 240.0  # seconds; far more than anything takes, so that a busy machine fails no test


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where the rank programs are."""
    return Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def run_job() -> Callable[..., str]:
    """Runs a script on `size` ranks, which check everything themselves; returns what they printed."""

    def run(script: Sequence[str], size: int, environ: Mapping[str, str] | None = None) -> str:
        quiet = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "DISTRUN_STALL_TIMEOUT": "60"}
        done = subprocess.run(
            [sys.executable, "-m", "distrun.runner", "-np", str(size), sys.executable, *script],
            env={**os.environ, **quiet, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def checks_of(run_job, programs) -> Callable[..., set[str]]:
    """Runs `programs/<program>.py` on two ranks, once with the same variables; the checks that were good."""
    known: dict[tuple[object, ...], set[str] | BaseException] = {}

    def run(program: str, **environ: str) -> set[str]:
        key = (program, *environ.items())
        if key not in known:
            try:
                lines = run_job([str(programs / f"{program}.py")], 2, environ).splitlines()
                known[key] = {line.partition("good: ")[2] for line in lines if "good: " in line}
            except (AssertionError, subprocess.TimeoutExpired) as error:
                known[key] = error
        result = known[key]
        if isinstance(result, BaseException):
            raise result
        return result

    return run
