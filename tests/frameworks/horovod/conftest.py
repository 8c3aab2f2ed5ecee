"""Runs scripts of Horovod's users on ranks that `distrun --horovod` has started, and that stay up between tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from warm_ranks import Command, WarmJobs

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def run_script(warm_jobs: WarmJobs) -> Callable[..., str]:
    """Runs `scripts/<script>.py` on two ranks that have loaded `framework`; returns what they printed."""

    def run(framework: str, script: str, *arguments: str, **environ: str) -> str:
        pytest.importorskip(framework)
        usual = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}

        def commands() -> list[Command]:
            return [([sys.executable, "-m", "distrun.runner", "--horovod", "-np", "2"], usual)]

        job = warm_jobs.get(f"horovod {framework}", commands, 2)
        return job.run(SCRIPTS / f"{script}.py", *arguments, DISTRUN_STALL_TIMEOUT="120", **environ)

    return run
