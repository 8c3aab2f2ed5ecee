"""The package itself: importing it is free, and every public name is where it is said to be."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import distrun

HEAVY = ("numpy", "mpi4py", "cupy", "torch", "tensorflow", "keras", "jax")


@pytest.mark.parametrize("module", ["distrun", "distrun.runner.cli", "distrun.runner.agent"])
def test_importing_it_loads_no_numpy_mpi_or_framework(module):
    program = f"import sys, {module}; print(*sorted(set(sys.modules) & set({HEAVY!r})))"
    loaded = subprocess.run([sys.executable, "-Ic", program], capture_output=True, text=True, check=True, timeout=60)
    assert loaded.stdout == "\n"


@pytest.mark.parametrize("name", distrun.__all__)
def test_every_public_name_resolves(name):
    assert getattr(distrun, name) is not None


def test_type_checkers_see_the_same_names_in_the_same_places():
    tree = ast.parse(Path(distrun.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If)).body
    seen = {alias.name: node.module for node in guarded if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == distrun._HOME_OF
    assert set(seen) | {"__version__"} == set(distrun.__all__)


def test_dir_offers_names_that_nobody_used_yet():
    assert set(distrun.__all__) <= set(dir(distrun))


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match=r"^module 'distrun' has no attribute 'all_reduce'$"):
        _ = distrun.all_reduce


def test_the_version_is_the_installed_one():
    assert importlib.metadata.version("distrun") == distrun.__version__
