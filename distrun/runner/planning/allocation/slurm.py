"""Allocations of Slurm."""

from __future__ import annotations

import re
from collections.abc import Mapping

from distrun.errors import UsageError
from distrun.host.numerals import whole_number
from distrun.runner.planning.allocation.allocated import Allocation, remedy
from distrun.runner.planning.hosts import Host, expand

# Step ids from this one up stand for the batch script and the like, which are not steps of srun.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


def read(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation in Slurm's variables, or None outside of its jobs.

    Raises:
        UsageError: they cannot be understood, or srun has started several copies of distrun.
    """
    if not (environ.get("SLURM_JOB_ID") and environ.get("SLURM_JOB_NODELIST")):
        return None
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if whole_number(tasks, 2) is not None:
        raise UsageError(
            f"srun started {tasks} copies of distrun (SLURM_STEP_NUM_TASKS), which would start each rank {tasks} "
            "times: start distrun once, without srun, or the script by srun, without distrun"
        )
    names = expand(environ["SLURM_JOB_NODELIST"], remedy("Slurm (SLURM_JOB_NODELIST)"))
    slots = _slots(environ, len(names))
    hosts = tuple(Host(name, count) for name, count in zip(names, slots, strict=True))
    return Allocation("Slurm", hosts, environ["SLURM_JOB_ID"])


def _slots(environ: Mapping[str, str], hosts: int) -> list[int]:
    """Return the slots per host: the tasks that were asked for, else one per GPU, else Slurm's own number of tasks.

    In a shell that srun started (`srun --pty bash`), the variables count the tasks of its own step only, so without
    GPUs a host has one slot per core there, or one per `--cpus-per-task` cores.
    """
    tasks = None if _is_task(environ) else environ.get("SLURM_TASKS_PER_NODE")
    is_stated = any(name in environ for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    if tasks and is_stated:
        return _counts("SLURM_TASKS_PER_NODE", tasks, hosts)
    for variable in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"):
        count = environ.get(variable, "").rpartition(":")[2]  # 4 or a100:4
        if slots := whole_number(count):
            return [slots] * hosts
    if tasks:
        return _counts("SLURM_TASKS_PER_NODE", tasks, hosts)
    cpus = environ.get("SLURM_JOB_CPUS_PER_NODE")
    if not cpus:
        return [1] * hosts
    per_task = environ.get("SLURM_CPUS_PER_TASK", "1")
    divisor = whole_number(per_task) or 1
    return [max(1, count // divisor) for count in _counts("SLURM_JOB_CPUS_PER_NODE", cpus, hosts)]


def _counts(variable: str, text: str, hosts: int) -> list[int]:
    """Return the counts per host in Slurm's notation: 2, 2, 2, 1 for `2(x3),1`."""
    counts: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word, re.ASCII)
        count, times = (whole_number(text) for text in (match[1], match[2] or "1")) if match else (None, None)
        if count is None or times is None or len(counts) + times > hosts:
            break
        counts += [count] * times
    else:
        if len(counts) == hosts:
            return counts
    raise UsageError(f"{variable}={text!r} is not a list of counts like 2(x3),1 for {hosts} hosts: {remedy('Slurm')}")


def is_own_node(environ: Mapping[str, str], host: str) -> bool:
    """Whether this process has everything that Slurm allocated to the job on `host`.

    A task that srun started may have fewer cores, and a shell that salloc started outside the allocation has none of
    them.
    """
    return environ.get("SLURMD_NODENAME") == host and not _is_task(environ)


def _is_task(environ: Mapping[str, str]) -> bool:
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP
