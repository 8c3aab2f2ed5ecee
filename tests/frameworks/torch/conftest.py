"""Runs the rank programs here: each checks many behaviours, since every rank spends a second on `import torch`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def job(run_ranks: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., str]:
    """Runs `programs/<program>.py` on `size` ranks, which check everything themselves; returns what they printed.

    `size` may also be the numbers of ranks on each of several hosts.
    """

    def run(program: str, size: int | tuple[int, ...], *arguments: str, **environ: str) -> str:
        command = [sys.executable, str(PROGRAMS / f"{program}.py"), *arguments]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "DISTRUN_STALL_TIMEOUT": "60", **environ}
        done = run_ranks(command, size, environ)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-10000:]}"
        return done.stdout

    return run
