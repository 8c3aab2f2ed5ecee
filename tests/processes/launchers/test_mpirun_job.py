"""The environment of a real mpirun's ranks, as distrun reads it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

REPORT = (
    "import os; from distrun.runtime.world.environments import detect; "
    "e = detect(os.environ); print(f'{e.name}|{e.topology()!r}|{e.job_name()}\\n', end='')"
)


def _beside_python(command: str) -> str:
    """The path of a command, or a skip that says what is missing."""
    found = shutil.which(command, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    return found or pytest.skip(f"no {command} on PATH or beside {sys.executable}")


@pytest.mark.mpi
def test_two_ranks_of_a_real_mpirun_agree_on_their_job():
    mpirun = _beside_python("mpirun")
    release = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    options = ["--oversubscribe"] if "Open MPI" in release else []
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("DISTRUN_", "TORCHELASTIC_"))}
    command = [mpirun, *options, "-np", "2", sys.executable, "-c", REPORT]
    output = subprocess.run(
        command, env={**ours, **root}, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    names, places, jobs = zip(*(line.split("|") for line in sorted(output.splitlines())), strict=True)
    assert set(names) == {"Open MPI" if options else "Hydra"}
    assert places == tuple(f"rank {rank}(2), local {rank}(2), host 0(1) on {socket.gethostname()}" for rank in (0, 1))
    assert len(set(jobs)) == 1
