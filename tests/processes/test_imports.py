"""Importing the package is free, and brings the public names, for type checkers too."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

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


def test_what_ipython_loads_imports_nothing_of_it():
    program = "import sys, distrun; distrun.load_ipython_extension; print('IPython' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "False\n"


@pytest.mark.parametrize(("platform", "name"), [("darwin", "macOS"), ("win32", "Windows"), ("freebsd14", "freebsd14")])
def test_on_other_systems_an_import_fails_with_a_sentence(platform, name):
    program = f"import sys; sys.platform = {platform!r}\ntry: import distrun.torch\nexcept ImportError as e: print(e)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout.startswith(f"distrun needs Linux, and this is {name}: use a Linux machine, or here a container")
    assert ended.stdout.count("\n") == 1
    assert ended.stderr == ""


@pytest.mark.parametrize(
    "command", one_in_gate(["-m", "distrun"], ["distrun", "--version"], ["distrun-compat", "mpirun", "true"])
)
def test_on_other_systems_a_command_ends_with_a_sentence(tmp_path, command):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.platform = 'darwin'")
    for name in ("distrun", "distrun-compat"):
        (tmp_path / name).write_text("from distrun.cli import main\nmain()")
    path = f"{tmp_path}:{Path(distrun.__file__).parents[1]}"
    ended = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("distrun: error: distrun needs Linux, and this is macOS: ")
    assert ended.stderr.count("\n") == 1
