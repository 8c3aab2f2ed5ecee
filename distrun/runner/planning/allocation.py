"""The allocation of a batch scheduler, Slurm, PBS or LSF: its variables and files in, hosts with their slots out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distrun.errors import UsageError
from distrun.runner.planning.host_ranges import expand
from distrun.runner.planning.hosts import Host, merge

_REMEDY = "let {scheduler} set it, or give the hosts with -H"
# From here on, Slurm's numbers of steps stand for the batch script and the like, which are no steps.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class Allocation:
    """The hosts that a scheduler has allocated to this job."""

    scheduler: str
    """Slurm, PBS or LSF."""
    hosts: tuple[Host, ...]
    """In the scheduler's order, each with its slots."""
    name: str = ""
    """The scheduler's name of the job."""

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"{self.scheduler} job{name}: {','.join(map(str, self.hosts))}"


def current(environ: Mapping[str, str]) -> Allocation | None:
    """Return the allocation that this process runs in, None when it runs in none.

    Raises:
        UsageError: the scheduler's variables or files cannot be understood.
    """
    if environ.get("SLURM_JOB_ID") and environ.get("SLURM_JOB_NODELIST"):
        return _slurm(environ)
    if environ.get("PBS_NODEFILE"):
        return _pbs(environ)
    if environ.get("LSB_JOBID"):
        return _lsf(environ)
    return None


def is_own_node(environ: Mapping[str, str], host: str) -> bool:
    """Whether this process has all that Slurm allocated to us on a host.

    A task that srun started may have fewer cores than that, and a shell that salloc started outside has none of them.
    """
    return environ.get("SLURMD_NODENAME") == host and not _is_task(environ)


def _is_task(environ: Mapping[str, str]) -> bool:
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP


# --- Slurm


def _slurm(environ: Mapping[str, str]) -> Allocation:
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdecimal() and int(tasks) > 1:
        raise UsageError(
            f"srun started {tasks} copies of distrun (SLURM_STEP_NUM_TASKS), which would start each rank {tasks} "
            "times: "
            "start distrun once, without srun, or the script by srun, without distrun"
        )
    names = expand(environ["SLURM_JOB_NODELIST"], _REMEDY.format(scheduler="Slurm (SLURM_JOB_NODELIST)"))
    slots = _slurm_slots(environ, len(names))
    hosts = tuple(Host(name, count) for name, count in zip(names, slots, strict=True))
    return Allocation("Slurm", hosts, environ["SLURM_JOB_ID"])


def _slurm_slots(environ: Mapping[str, str], hosts: int) -> list[int]:
    """Return the slots per host: the tasks that were asked for, else one per GPU, else Slurm's own number of tasks.

    A shell that srun started (`srun --pty bash`) is told the tasks of its own step only, so there it is one per core.
    """
    tasks = None if _is_task(environ) else environ.get("SLURM_TASKS_PER_NODE")
    is_stated = any(name in environ for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    if tasks and is_stated:
        return _counts("SLURM_TASKS_PER_NODE", tasks, hosts)
    for variable in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"):
        count = environ.get(variable, "").rpartition(":")[2]  # 4 or a100:4
        if count.isdecimal() and int(count):
            return [int(count)] * hosts
    if tasks:
        return _counts("SLURM_TASKS_PER_NODE", tasks, hosts)
    cpus = environ.get("SLURM_JOB_CPUS_PER_NODE")
    if not cpus:
        return [1] * hosts
    per_task = environ.get("SLURM_CPUS_PER_TASK", "1")
    divisor = int(per_task) if per_task.isdecimal() and int(per_task) else 1
    return [max(1, count // divisor) for count in _counts("SLURM_JOB_CPUS_PER_NODE", cpus, hosts)]


def _counts(variable: str, text: str, hosts: int) -> list[int]:
    """Return the counts per host that Slurm writes as `2(x3),1`: 2, 2, 2, 1."""
    counts: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word, re.ASCII)
        if match is None or int(match[1]) == 0 or len(counts) + int(match[2] or 1) > hosts:
            break
        counts += [int(match[1])] * int(match[2] or 1)
    else:
        if len(counts) == hosts:
            return counts
    raise UsageError(
        f"{variable}={text!r} is not a list of counts like 2(x3),1 for {hosts} hosts: "
        f"{_REMEDY.format(scheduler='Slurm')}"
    )


# --- PBS and LSF


def _pbs(environ: Mapping[str, str]) -> Allocation:
    """Read PBS's node file: a line per slot, or a line per host and PBS_NUM_PPN slots on each."""
    file = environ["PBS_NODEFILE"]
    hosts = merge(Host(name, 1) for name in _lines("PBS_NODEFILE", file, "PBS"))
    per_host = environ.get("PBS_NUM_PPN", "")
    if per_host.isdecimal() and int(per_host) and all(host.slots == 1 for host in hosts):
        hosts = [Host(host.name, int(per_host)) for host in hosts]
    return Allocation("PBS", tuple(hosts), environ.get("PBS_JOBID", ""))


def _lsf(environ: Mapping[str, str]) -> Allocation | None:
    """Read the hosts from a file or a variable of LSF; the variables are not set where the list is very long."""
    if file := environ.get("LSB_DJOB_HOSTFILE"):
        hosts = [Host(name, 1) for name in _lines("LSB_DJOB_HOSTFILE", file, "LSF")]
    elif text := environ.get("LSB_MCPU_HOSTS"):
        words = text.split()
        if len(words) % 2 or not all(word.isdecimal() and int(word) for word in words[1::2]):
            raise UsageError(
                f"LSB_MCPU_HOSTS={text!r} is not a list of hosts and slots like 'a 4 b 4': "
                f"{_REMEDY.format(scheduler='LSF')}"
            )
        hosts = [Host(name, int(slots)) for name, slots in zip(words[::2], words[1::2], strict=True)]
    else:
        hosts = [Host(name, 1) for name in environ.get("LSB_HOSTS", "").split()]
    return Allocation("LSF", tuple(merge(hosts)), environ["LSB_JOBID"]) if hosts else None


def _lines(variable: str, file: str, scheduler: str) -> list[str]:
    try:
        names = Path(file).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{variable}={file!r} cannot be read: {reason}; give the hosts with -H") from None
    if not names:
        raise UsageError(f"{variable}={file!r} names no host: {_REMEDY.format(scheduler=scheduler)}")
    return names
