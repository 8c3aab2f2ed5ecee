"""Runs the rank programs here: each checks many behaviours, since every rank spends seconds on the import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "DISTRUN_STALL_TIMEOUT": "120"}


@pytest.fixture(scope="session")
def programs() -> Path:
    """Where the rank programs are."""
    return Path(__file__).parent / "programs"


@pytest.fixture
def run_job(run_ranks: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Runs a script on `size` ranks, which check everything themselves; returns what they printed."""

    def run(script: Sequence[str], size: int, environ: Mapping[str, str] | None = None) -> str:
        done = run_ranks([sys.executable, *script], size, {**os.environ, **QUIET, **(environ or {})})
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        return done.stdout

    return run


@pytest.fixture
def run_program(run_warm: Callable[..., str], programs: Path) -> Callable[..., str]:
    """Runs `programs/<program>.py` on two ranks that have imported TensorFlow already; returns what they printed."""

    def run(program: str, mechanism: str = "auto") -> str:
        chosen = {**QUIET, "DISTRUN_TENSORFLOW_OP": mechanism}  # a process keeps to its first choice
        return run_warm(f"tensorflow {mechanism}", 2, programs / f"{program}.py", **chosen)

    return run


_known: dict[tuple[str, ...], set[str] | AssertionError] = {}


@pytest.fixture
def checks_of(run_program: Callable[..., str]) -> Callable[..., set[str]]:
    """Runs a program once with each mechanism; the checks that were good."""

    def run(*program: str) -> set[str]:
        if program not in _known:
            try:
                lines = run_program(*program).splitlines()
                _known[program] = {line.partition("good: ")[2] for line in lines if "good: " in line}
            except AssertionError as error:
                _known[program] = error
        result = _known[program]
        if isinstance(result, AssertionError):
            raise result
        return result

    return run
