"""Runs the rank programs here, each of which checks many behaviours, since importing the frameworks takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE = 400.0  # seconds; far more than anything takes, so that a busy machine fails no test


@pytest.fixture(scope="session")
def outcomes() -> Callable[..., dict[str, str]]:
    """Runs `programs/<program>.py` on two ranks; returns for each of its checks what went wrong, or "ok"."""
    known: dict[tuple[str, ...], dict[str, str]] = {}

    def run(program: str, backend: str = "tensorflow") -> dict[str, str]:
        if (program, backend) not in known:
            done = subprocess.run(
                [sys.executable, "-m", "distrun.runner", "-np", "2", sys.executable, str(PROGRAMS / f"{program}.py")],
                env={
                    **os.environ,
                    "KERAS_BACKEND": backend,
                    "OMP_NUM_THREADS": "1",
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "DISTRUN_STALL_TIMEOUT": "120",
                },
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=False,
            )
            lines = [line.partition("outcome: ")[2] for line in done.stdout.splitlines()]
            known[program, backend] = dict(json.loads(line) for line in lines if line)
            assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-9000:]}"
        return known[program, backend]

    return run
