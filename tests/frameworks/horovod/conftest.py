"""Runs scripts of Horovod's users on ranks that `distrun --horovod` has started, and that stay up between tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from warm_ranks import Command, WarmJobs

from distrun.contract import horovod
from distrun.contract.launch import LaunchContract

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def run_script(warm_jobs: WarmJobs, contracts: Callable[[Sequence[int]], list[LaunchContract]]) -> Callable[..., str]:
    """Runs `scripts/<script>.py` on two ranks that have loaded `framework`; returns what they printed.

    `size` may be another number of ranks, or the numbers of ranks on each of several hosts.
    """

    def run(framework: str, script: str, *arguments: str, size: int | tuple[int, ...] = 2, **environ: str) -> str:
        pytest.importorskip(framework)
        usual = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}

        def commands() -> list[Command]:
            if isinstance(size, tuple):
                mode = {**usual, horovod.MODE: "1"}
                mode |= horovod.search_path(mode)
                return [([], {**mode, **contract.to_environ()}) for contract in contracts(size)]
            return [([sys.executable, "-m", "distrun.runner", "--horovod", "-np", str(size)], usual)]

        ranks = size if isinstance(size, int) else sum(size)
        job = warm_jobs.get(f"horovod {framework} {size}", commands, ranks)
        return job.run(SCRIPTS / f"{script}.py", *arguments, DISTRUN_STALL_TIMEOUT="120", **environ)

    return run
