"""The simulated GPU's `cupy` has no name and no parameter that the real one has not. Needs the real one, but no GPU."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SIMULATOR = Path(__file__).parents[1] / "simulator"

# Prints, for each name of a list from stdin: what kind of thing it is, its parameters as far as they can be had, its
# value.
DESCRIBE = r"""
import importlib, inspect, json, re, sys

def parameters(thing):
    try:
        return list(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        pass
    # NcclCommunicator.send(self, intptr_t sendbuf, size_t count, ...)
    line = (thing.__doc__ or "").strip().splitlines()[:1]
    if not line or "(" not in line[0]:
        return None
    inside = line[0][line[0].index("(") + 1 : line[0].rindex(")")]
    parts = [part.partition("=")[0].split() for part in re.sub(r"\([^()]*\)", "", inside).split(",")]
    return [word[-1].lstrip("*") for word in parts if word and word[-1] != "*"]

found = {}
for name in json.load(sys.stdin):
    module, _, path = name.partition(":")
    thing = importlib.import_module(module)
    try:
        for part in path.split("."):
            thing = getattr(thing, part)
    except AttributeError:
        found[name] = None
        continue
    if isinstance(thing, (int, bool, str)):
        found[name] = ["value", thing]
    elif callable(thing):
        found[name] = ["callable", parameters(thing)]
    else:
        found[name] = ["other", None]
json.dump(found, sys.stdout)
"""
MODULES = ("cupy", "cupy.cuda", "cupy.cuda.runtime", "cupy.cuda.nccl")
ELSEWHERE = {"CUDARuntimeError"}  # what the package `cupy` has from the package `simulator`
ATTRIBUTES = ("__call__", "__cuda_stream__", "__dlpack__", "__dlpack_device__", "__cuda_array_interface__", "__enter__")


def names_of(module: Any) -> list[str]:
    """Return the public names of a module of the simulator and of its classes, as `module:name.attribute`."""
    names: list[str] = []
    for name, thing in vars(module).items():
        defined = getattr(thing, "__module__", module.__name__)
        if name.startswith("_") or inspect.ismodule(thing) or name == "annotations":
            continue
        is_own = isinstance(defined, str) and defined.split(".")[0] == "cupy"
        if not is_own and name not in ELSEWHERE:
            continue
        names.append(f"{module.__name__}:{name}")
        if inspect.isclass(thing):
            members = [member for kind in thing.__mro__ if kind.__module__.startswith("cupy") for member in vars(kind)]
            names += [
                f"{module.__name__}:{name}.{member}"
                for member in dict.fromkeys(members)
                if not member.startswith("_") or member in ATTRIBUTES
            ]
    return names


def described(names: list[str], path: str) -> dict[str, Any]:
    """Return what a process with `path` in front of its search path finds."""
    program = f"import sys; sys.path[:0] = {[path] if path else []!r}\n{DESCRIBE}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(json.loads(done.stdout))


def why_not() -> str:
    """Return why there is no real cupy to compare with; empty if there is."""
    probe = "import cupy, cupy.cuda.nccl as nccl; assert nccl.available, 'it has no NCCL'; print(cupy.__version__)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", probe], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"needs cupy, by the extra cuda12 or cuda13: {done.stderr.strip().splitlines()[-1]}"
    return "" if int(done.stdout.split(".")[0]) >= 14 else f"needs cupy 14, and this is {done.stdout.strip()}"


def test_every_name_and_parameter_is_cupys(simulated):
    if reason := why_not():
        pytest.skip(reason)
    names = [name for module in MODULES for name in names_of(importlib.import_module(module))]
    assert len(names) > 100
    simulator, real = described(names, str(SIMULATOR)), described(names, "")
    wrong = []
    for name in names:
        ours, theirs = simulator[name], real[name]
        if theirs is None:
            wrong.append(f"{name}: cupy has no such name")
        elif ours[0] == "value" and ours != theirs:
            wrong.append(f"{name}: {ours[1]!r} here, {theirs[1]!r} in cupy")
        elif ours[0] == "callable" and theirs[0] != "callable":
            wrong.append(f"{name}: cannot be called in cupy")
        elif ours[0] == "callable" and ours[1] and theirs[1] and not _fit(ours[1], theirs[1]):
            wrong.append(f"{name}: has parameters {ours[1]} here, {theirs[1]} in cupy")
    assert not wrong, "\n".join(wrong)


def _fit(ours: list[str], theirs: list[str]) -> bool:
    """Whether calls that ours takes are taken by cupy's: by the same names, in the same order; cupy may have more
    behind."""
    if {"args", "kwargs"} & set(theirs):
        return True
    ours, theirs = [name for name in ours if name != "self"], [name for name in theirs if name != "self"]
    return theirs[: len(ours)] == ours
