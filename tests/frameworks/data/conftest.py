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
QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "DISTRUN_STALL_TIMEOUT": "120"}

_known: dict[tuple[str, ...], dict[str, str]] = {}


@pytest.fixture
def outcomes(run_ranks: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., dict[str, str]]:
    """Runs `programs/<program>.py` on two ranks; returns for each of its checks what went wrong, or "ok"."""

    def run(program: str, backend: str = "tensorflow") -> dict[str, str]:
        if (program, backend) not in _known:
            command = [sys.executable, str(PROGRAMS / f"{program}.py")]
            done = run_ranks(command, 2, {**os.environ, **QUIET, "KERAS_BACKEND": backend})
            lines = [line.partition("outcome: ")[2] for line in done.stdout.splitlines()]
            _known[program, backend] = dict(json.loads(line) for line in lines if line)
            assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-9000:]}"
        return _known[program, backend]

    return run
