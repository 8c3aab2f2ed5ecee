"""Horovod mode: the package `horovod` that stands for distrun, and the meaning of Horovod's environment variables.

The mode is on where `DISTRUN_HOROVOD` is 1, which `distrun --horovod` and `install_as_horovod` set. Then the folder
`distrun/as-horovod` is on the search path of modules. It contains a package of plain files, `horovod`, whose modules
export distrun under Horovod's names. That package is never imported by accident: its folder's name has a hyphen, and it
is on the search path in this mode only.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from distrun.errors import UsageError

if TYPE_CHECKING:
    from distrun.contract.launch import LaunchContract

MODE = "DISTRUN_HOROVOD"
PREFIX = "HOROVOD_"
FOLDER = str(Path(__file__).parents[1] / "as-horovod")
"""The folder that makes `import horovod` find distrun, when it is on the search path of modules."""


def is_on(environ: Mapping[str, str]) -> bool:
    """Return whether an environment turns Horovod mode on."""
    return environ.get(MODE) == "1"


def install_as_horovod() -> None:
    """Make `import horovod` and `import horovod.torch` give distrun in this process, after this call.

    It does for one process what `distrun --horovod` does for all ranks. Call it before the first import of `horovod`.
    Processes that this one starts inherit the mode through `DISTRUN_HOROVOD=1`, which it sets, and children of
    `multiprocessing` inherit the search path of modules.

    Raises:
        UsageError: another `horovod` has been imported already.
    """
    there = sys.modules.get("horovod")
    origin = str(getattr(there, "__file__", None))
    if there is not None and os.path.dirname(os.path.dirname(origin)) != FOLDER:
        raise UsageError(
            f"install_as_horovod: another horovod has been imported already, from {origin}: call this before the first "
            "import of horovod, or start the script with distrun --horovod"
        )
    sys.path[:] = [FOLDER, *(entry for entry in sys.path if entry != FOLDER)]
    os.environ[MODE] = "1"


def search_path(environ: Mapping[str, str]) -> dict[str, str]:
    """Return PYTHONPATH with distrun's `horovod` in front, for the ranks of this host. Empty outside Horovod mode."""
    if not is_on(environ):
        return {}
    others = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != FOLDER]
    return {"PYTHONPATH": os.pathsep.join([FOLDER, *others])}


def rank_variables(contract: LaunchContract, elastic: bool = False) -> dict[str, str]:
    """Return the variables that Horovod's launcher gives a rank for its place in the job. Scripts read them.

    Args:
        contract: the rank's contract.
        elastic: whether the job is elastic, which scripts read, too.
    """
    names = ("hostname", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    variables = {PREFIX + name.upper(): str(getattr(contract, name)) for name in names}
    return variables | {"HOROVOD_ELASTIC": "1"} if elastic else variables


# The variables of users -----------------------------------------------------------------------------------------------

_HONOURED = {
    "fusion_threshold": ("HOROVOD_FUSION_THRESHOLD",),
    "bucket_bytes": ("HOROVOD_FUSION_THRESHOLD",),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY",),
    "stall_warning": ("HOROVOD_STALL_CHECK_TIME_SECONDS",),
    "stall_timeout": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",),
    "start_timeout": ("HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS"),
    "network": ("HOROVOD_GLOO_IFACE",),
    "timeline_mark_cycles": ("HOROVOD_TIMELINE_MARK_CYCLES",),
    "log_level": ("HOROVOD_LOG_LEVEL",),
    "autotune_log": ("HOROVOD_AUTOTUNE_LOG",),
}
"""For a field of `Settings`, Horovod's variables with the same meaning. The first one that is set counts."""

TIMELINE = "HOROVOD_TIMELINE"
_LATER = "DYNAMIC"
"""The value of `HOROVOD_TIMELINE` where the script will call `start_timeline`. With distrun it always may."""

_WITHOUT_EFFECT = {
    r"CYCLE_TIME": "operations start when the last rank has submitted them, without a cycle to wait for",
    r"(HIERARCHICAL_ALLREDUCE|HIERARCHICAL_ALLGATHER|TORUS_ALLREDUCE)": "what crosses hosts does so once per host "
    "always",
    r"NUM_NCCL_STREAMS": "NCCL works on one stream here",
    r"BATCH_D2D_MEMCOPIES": "gradients are always packed by one kernel",
    r"DISABLE_GROUP_FUSION": "a group is always one operation per type of element",
    r"ENABLE_ASYNC_COMPLETION": "the host never waits for the GPU",
    r"ENABLE_XLA_OPS": "functions that XLA compiles cannot communicate on TensorFlow",
    r"ADASUM_MPI_CHUNK_SIZE": "tensors are not sent in chunks of this size",
    r"AUTOTUNE_.*": "tuning ends within 50 steps and adapts to how they vary, without numbers to choose",
    r"DISABLE_NVTX_RANGES": "there are no NVTX ranges",
    r"(CONTROLLER|CPU_OPERATIONS|CCL_.*)": "DISTRUN_BACKEND is what chooses how arrays travel",
    r"MPI_THREADS_DISABLE": "mpi4py decides how MPI is started",
    r"THREAD_AFFINITY": "threads are not pinned to cores",
    r"SPARK_.*": "of these, the driver's distrun.spark.run takes SPARK_START_TIMEOUT alone",
}
"""Variables without HOROVOD_ that have no effect here, and the reason."""

# Read elsewhere, or set by launchers, or used to build Horovod: container images keep the last kind.
_NOT_FOR_RUNS = re.compile(
    r"HOSTNAME|(LOCAL_|CROSS_)?(RANK|SIZE)|ELASTIC(_TIMEOUT)?|GLOO_RENDEZVOUS_(ADDR|PORT)|STALL_CHECK_DISABLE|LOG_HIDE_TIME"
    r"|AUTOTUNE|TIMELINE"
    r"|DYNAMIC_PROCESS_SETS|WITH(OUT)?_.*|GPU(_.*)?|(CUDA|ROCM|NCCL|NVTX|DDL|CCL|MPI)_(HOME|INCLUDE|LIB|LINK)"
    r"|ALLOW_MIXED_GPU_IMPL|BUILD_.*|CMAKE|DEBUG|SKIP_COMPILE|(LOCAL_)?VERSION"
)


def settings_of(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the values of Horovod's variables for the fields of `Settings`.

    Returns:
        For each field that is set, the variable, and the text that has the user's meaning for the field. Empty outside
        Horovod mode.
    """
    if not is_on(environ):
        return {}
    given: dict[str, tuple[str, str]] = {}
    for field, variables in _HONOURED.items():
        for name in filter(environ.get, reversed(variables)):
            given[field] = name, environ[name]
    if _is_true("HOROVOD_STALL_CHECK_DISABLE", environ):
        given |= dict.fromkeys(("stall_warning", "stall_timeout"), ("HOROVOD_STALL_CHECK_DISABLE", "0"))
    if environ.get("HOROVOD_AUTOTUNE"):
        given["autotune"] = "HOROVOD_AUTOTUNE", "01"[_is_true("HOROVOD_AUTOTUNE", environ)]
    if "log_level" in given:
        name, text = given["log_level"]
        given["log_level"] = name, text.lower()  # Horovod's launcher writes it in capitals
    if "timeline_mark_cycles" in given:
        name = "HOROVOD_TIMELINE_MARK_CYCLES"
        given["timeline_mark_cycles"] = name, "01"[_is_true(name, environ)]
    if environ.get("HOROVOD_LOG_HIDE_TIME"):
        given["log_time"] = "HOROVOD_LOG_HIDE_TIME", "10"[_is_true("HOROVOD_LOG_HIDE_TIME", environ)]
    return given


def timeline_file(environ: Mapping[str, str]) -> str:
    """Return the timeline file that `HOROVOD_TIMELINE` asks for. Empty if it asks for none or Horovod mode is off."""
    file = environ.get(TIMELINE, "") if is_on(environ) else ""
    return "" if file == _LATER else file


def _is_true(name: str, environ: Mapping[str, str]) -> bool:
    """Return the value of one of Horovod's switches: an integer above 0 is on, anything else is off."""
    text = environ.get(name, "").strip()
    return text.isdecimal() and int(text) > 0


def without_effect(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each of Horovod's variables that is set without effect. Empty outside Horovod mode."""
    names = sorted(name for name in environ if name.startswith(PREFIX)) if is_on(environ) else []
    reasons = [(name, _reason(name.removeprefix(PREFIX))) for name in names]
    return [f"{name} changes nothing: {reason}" for name, reason in reasons if reason]


def _reason(name: str) -> str:
    """Return why a variable without HOROVOD_ has no effect. Empty if it has one, or is not meant for runs."""
    if PREFIX + name in chain(*_HONOURED.values()) or _NOT_FOR_RUNS.fullmatch(name):
        return ""
    reasons = (reason for pattern, reason in _WITHOUT_EFFECT.items() if re.fullmatch(pattern, name))
    return next(reasons, "Horovod has no variable of this name; docs/coming-from-horovod.md lists those that count")
