"""Runs the rank programs here on ranks that stay up, since every rank spends a second on `import torch`; and jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from without_launcher.unlaunched_ranks import marker, ranks

pytest.importorskip("torch")
__all__ = ["marker", "ranks"]

DEADLINE = 300.0  # seconds; far more than anything takes, so that a busy machine fails no test
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def job(run_warm: Callable[..., str]) -> Callable[..., str]:
    """Runs `programs/<program>.py` on `size` ranks, which check everything themselves; returns what they printed.

    `size` may also be the numbers of ranks on each of several hosts.
    """

    def run(program: str, size: int | tuple[int, ...], *arguments: str, **environ: str) -> str:
        environ = {"DISTRUN_STALL_TIMEOUT": "60", **environ}
        return run_warm("torch", size, PROGRAMS / f"{program}.py", *arguments, **environ)

    return run


@pytest.fixture
def run_script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a Python script to its good end, as a command that `launcher` begins or by itself; returns its output."""

    def run(launcher: list[str], *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
        command = [*launcher, sys.executable, *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
