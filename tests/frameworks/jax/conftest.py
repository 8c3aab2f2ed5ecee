"""Runs the rank programs here: each checks many behaviours, since every rank spends a second on `import jax`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("jax")

PROGRAMS = Path(__file__).parent / "programs"
QUICK = {  # ranks spend most of their time in XLA's compiler
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "DISTRUN_STALL_TIMEOUT": "120",
}


@pytest.fixture
def warm_job(run_warm: Callable[..., str]) -> Callable[..., str]:
    """Runs `programs/<program>.py` as `job` does, on ranks that have imported JAX already."""
    return lambda program, size: run_warm("jax", size, PROGRAMS / f"{program}.py", **QUICK)


@pytest.fixture
def job(run_ranks: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Runs `programs/<program>.py` on `size` ranks, which check everything themselves; returns what they printed.

    `size` may also be the numbers of ranks on each of several hosts.
    """

    def run(program: str, size: int | tuple[int, ...], **environ: str) -> str:
        command = [sys.executable, str(PROGRAMS / f"{program}.py")]
        done = run_ranks(command, size, {**os.environ, **QUICK, **environ})
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        return done.stdout

    return run
