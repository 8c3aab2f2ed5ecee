"""Importing the package is free, and brings the public names, for type checkers too."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from session.tiers import one_in_gate

import distrun

pytestmark = pytest.mark.gate

HEAVY = ("numpy", "mpi4py", "cupy", "torch", "tensorflow", "keras", "jax", "rich", "psutil", "cloudpickle", "paramiko")
ELASTIC = ("distrun.runner.decisions.elastic.policy", "distrun.runner.elastic.job")  # a plain job does not need them
LAUNCHER = "distrun.cli, distrun.runner.launch.launch, distrun.runner.job.job, distrun.runner.planning.prepare"


@pytest.mark.parametrize("modules", ["distrun", LAUNCHER, "distrun.runner.agent.__main__"])
def test_importing_it_loads_no_numpy_mpi_framework_or_other_large_library(modules):
    program = f"import sys, {modules}; print(*sorted(set(sys.modules) & set({HEAVY + ELASTIC!r})))"
    loaded = subprocess.run([sys.executable, "-Ic", program], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "\n"


@pytest.mark.full
def test_a_strict_type_checker_sees_every_public_name(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("".join(f"from distrun import {name} as {name}\n" for name in distrun.__all__))
    command = [sys.executable, "-Im", "mypy", "--strict", "--cache-dir", str(tmp_path), "--config-file=", str(script)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=300)
    complaints = [line for line in checked.stdout.splitlines() if line.startswith(str(script))]
    assert not complaints, checked.stdout


@pytest.mark.parametrize("name", one_in_gate("distrun", "distrun.torch", "distrun.data"))
def test_a_star_import_brings_the_public_names_and_nothing_else(name):
    program = f"from {name} import *; print(*sorted(n for n in globals() if n == '__version__' or n[:2] != '__'))"
    brought = subprocess.run([sys.executable, "-Ic", program], capture_output=True, text=True, check=True, timeout=60)
    assert brought.stdout.split() == sorted(importlib.import_module(name).__all__)


def test_starting_a_job_and_catching_its_errors_needs_no_numpy():
    program = "import sys, distrun; distrun.run; distrun.LaunchError; print('numpy' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-Ic", program], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "False\n"
