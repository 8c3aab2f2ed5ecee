"""Importing the package is free, and so is what the launcher and its agents need of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "mpi4py", "cupy", "torch", "tensorflow", "keras", "jax")


@pytest.mark.parametrize("module", ["distrun", "distrun.runner.cli", "distrun.runner.agent.__main__"])
def test_importing_it_loads_no_numpy_mpi_or_framework(module):
    program = f"import sys, {module}; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    loaded = subprocess.run([sys.executable, "-Ic", program], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "\n"
