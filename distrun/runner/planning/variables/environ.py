"""The environment that a rank starts with: the launcher's without variables of other launches, and what `-x` adds."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fnmatch import fnmatchcase

from distrun.contract import horovod
from distrun.contract.launch import PREFIX, LaunchContract
from distrun.errors import UsageError

# Variables that an outer launcher used to give *this process* its identity. The ranks would take it for their own.
_STALE = re.compile(
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_(NAME|RANK|WORLD_SIZE)"
    r"|MASTER_ADDR|MASTER_PORT|TORCHELASTIC_.*|OMPI_COMM_WORLD_.*|OMPI_UNIVERSE_SIZE|PMIX_.*|PMI_.*"
    r"|HOROVOD_(HOSTNAME|ELASTIC|(LOCAL_|CROSS_)?(RANK|SIZE))"
    r"|SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS|NPROCS|STEP.*|SRUN_.*|CPU_BIND.*)"
    r"|DISTRUN_(PROCESS|CONTROL_FD|SPARE|SHIPPED|HOSTS|ENDPOINT|SLOTS|TRIAL|TRIAL_FD|TRIAL_PRUNES)"
    r"|DISTRUN_SERVER(S|_MEMORY|_RESTARTS|_COPIES|_GENERATION)?"
    r"|" + "|".join(PREFIX + field.name.upper() for field in fields(LaunchContract))
)
AUTO = "auto"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATTERN = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")


def inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the launcher's environment without the variables of another launch."""
    return {name: value for name, value in environ.items() if not _STALE.fullmatch(name)}


def requested_variables(specs: Sequence[str], environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that the `-x` options ask for.

    Args:
        specs: `NAME=VALUE` sets a variable. `NAME` and patterns such as `NCCL_*` take variables from the environment.
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


def forwarded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the launcher's environment that ranks on other hosts always get.

    They are PYTHONPATH, as these ranks have the same directory and Python, and the settings of distrun, which must be
    the same on all ranks. In Horovod mode, Horovod's variables are included.
    """
    prefixes = (PREFIX, horovod.PREFIX) if horovod.is_on(environ) else PREFIX
    return {name: value for name, value in environ.items() if name == "PYTHONPATH" or name.startswith(prefixes)}


def forwarded_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among the forwarded variables, for ranks that an engine such as Ray starts, without the
    identity of this process.
    """
    found = inherited_variables(forwarded_variables(environ))
    return {name: value for name, value in found.items() if name != "PYTHONPATH"}


def complete_on_host(planned: Mapping[str, str], login: Mapping[str, str], cores: int, ranks: int) -> dict[str, str]:
    """Return the environment of the ranks of a remote host: the plan's variables on top of the variables of a login
    there.

    Args:
        planned: the plan's variables, which take precedence. `OMP_NUM_THREADS=auto` is decided here.
        login: the environment of the agent.
        cores: the number of cores of the host.
        ranks: the number of ranks that share the cores.
    """
    own = inherited_variables(login)
    environ = {**own, "PATH": search_path(own.get("PATH", os.defpath)), **planned}
    if sys.prefix != sys.base_prefix:
        environ.setdefault("VIRTUAL_ENV", sys.prefix)
    if planned.get("OMP_NUM_THREADS") == AUTO:
        del environ["OMP_NUM_THREADS"]
        environ |= {name: own[name] for name in ("OMP_NUM_THREADS",) if name in own}
        environ |= thread_variables(environ, cores, ranks)
    return environ | horovod.search_path(environ)


def search_path(path: str) -> str:
    """Return a PATH with this Python's directory in front. Outside a virtual environment it is added only if it is
    missing.
    """
    own = os.path.dirname(sys.executable)
    if sys.prefix != sys.base_prefix:
        return f"{own}:{path}"
    return path if own in path.split(":") else f"{own}:{path}"


def thread_variables(environ: Mapping[str, str], cores: int, local_size: int) -> dict[str, str]:
    """Return OMP_NUM_THREADS such that the ranks of a host share its cores, or nothing if the user has set it."""
    if "OMP_NUM_THREADS" in environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores // local_size))}
