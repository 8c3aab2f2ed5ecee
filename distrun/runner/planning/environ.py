"""The environment a rank is born with: the launcher's, cleaned of other launches, and what `-x` asks for."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase

from distrun.errors import UsageError
from distrun.runtime.contract import PREFIX, LaunchContract

# What an outer launcher told *us* and must not reach our ranks: they would take it for their own identity.
_STALE = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_(NAME|RANK|WORLD_SIZE)"
    r"|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|OMPI_COMM_WORLD_.*|OMPI_UNIVERSE_SIZE|PMIX_.*|PMI_.*|HOROVOD_RANK"
    r"|SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS|NPROCS|STEP.*|SRUN_.*|CPU_BIND.*)"
    r"|" + "|".join(PREFIX + field.name.upper() for field in fields(LaunchContract))
)
AUTO = "auto"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATTERN = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment without what belongs to another launch."""
    return {name: value for name, value in environ.items() if not _STALE.fullmatch(name)}


def requested(specs: Sequence[str], environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What the `-x` options ask for.

    Args:
        specs: `NAME=VALUE` sets a variable; `NAME` and patterns such as `NCCL_*` take it from the environment.
        environ: the launcher's environment.

    Returns:
        The variables, and a sentence for each spec that matches nothing.

    Raises:
        UsageError: a spec names no variable.
    """
    variables: dict[str, str] = {}
    notes = []
    for spec in specs:
        name, equals, value = spec.partition("=")
        if equals and _NAME.fullmatch(name):
            variables[name] = value
            continue
        if equals or not _PATTERN.fullmatch(name):
            raise UsageError(
                f"-x {spec!r} names no variable: allowed are NAME, NAME=VALUE and patterns such as 'NCCL_*'"
            )
        found = {key: text for key, text in environ.items() if fnmatchcase(key, name)}
        variables.update(found)
        if not found:
            notes.append(f"-x {spec}: no such variable in the environment of distrun")
    return variables, notes


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks on other hosts get of the launcher's environment without being asked: where the code is, as they get the
    directory and the Python too, and the settings of distrun, which must be the same on all ranks."""
    return {name: value for name, value in environ.items() if name == "PYTHONPATH" or name.startswith(PREFIX)}


def complete_on_host(planned: Mapping[str, str], login: Mapping[str, str], cores: int, ranks: int) -> dict[str, str]:
    """Complete the plan's variables on the host they are for, with what a login gives there.

    Args:
        planned: the plan's variables. They win; `OMP_NUM_THREADS=auto` is the host's to decide.
        login: the environment of the agent.
        cores: of the host.
        ranks: how many share them.
    """
    own = inherited(login)
    environ = {**own, "PATH": search_path(own.get("PATH", os.defpath)), **planned}
    if sys.prefix != sys.base_prefix:
        environ.setdefault("VIRTUAL_ENV", sys.prefix)
    if planned.get("OMP_NUM_THREADS") == AUTO:
        del environ["OMP_NUM_THREADS"]
        environ |= {name: own[name] for name in ("OMP_NUM_THREADS",) if name in own}
        environ |= threads(environ, cores, ranks)
    return environ


def search_path(path: str) -> str:
    """A PATH on which `python` is this one: first in a virtual environment, as after its activation, else last resort."""
    own = os.path.dirname(sys.executable)
    if sys.prefix != sys.base_prefix:
        return f"{own}:{path}"
    return path if own in path.split(":") else f"{own}:{path}"


def threads(environ: Mapping[str, str], cores: int, local_size: int) -> dict[str, str]:
    """OMP_NUM_THREADS so that the ranks of a host share its cores, unless the user has set it."""
    if "OMP_NUM_THREADS" in environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores // local_size))}
