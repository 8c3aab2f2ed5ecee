"""Ranks started by Hydra, the mpiexec of MPICH, Intel MPI and MVAPICH."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.runtime.world.environments.base import Environment, even_topology

# mpiexec -hosts a:2,b:1 -n 3 gives rank 1: PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_HOSTNAME=a
# besides PMI_FD=9, the rank's own connection to the proxy.
_RANK = "PMI_RANK"
_SIZE = "PMI_SIZE"
_LOCAL_RANK = "MPI_LOCALRANKID"
_LOCAL_SIZE = "MPI_LOCALNRANKS"
_PROC = Path("/proc")
_PROXIES = ("hydra_pmi_proxy", "pmi_proxy")  # MPICH and everything derived from it; Intel MPI before 2019


class Hydra(Environment):
    name = "Hydra"
    is_mpi = True

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        # The PMI of Slurm and of Cray sets PMI_RANK as well, but not the other variable.
        return _RANK in environ and _LOCAL_RANK in environ

    def topology(self) -> Topology:
        return even_topology(*map(self._number, (_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE)))

    def job_name(self) -> str:
        # No variable names the job. Its ranks on a host have the same proxy as ancestor, and no other process does.
        for pid, command, start in _ancestors(os.getpid()):
            if command in _PROXIES:
                return f"hydra.{pid}.{start}"
        raise UsageError(
            f"no process above process {os.getpid()} is a Hydra proxy ({' or '.join(_PROXIES)}), so the ranks of this "
            "host cannot find each other; a container with its own process ids may hide it: start it with `distrun`"
        )


def _ancestors(pid: int, proc: Path = _PROC) -> Iterator[tuple[int, str, str]]:
    """Yield (process id, command, start in clock ticks since boot) of each visible ancestor, the parent first.

    The start time makes a process id unique until the next boot. psutil's `create_time` adds the boot time, which
    changes by a tick whenever the clock is adjusted, so two ranks might read different values.
    """
    parent = _stat(pid, proc)[0]
    while parent:  # 0: the parent is the kernel, or outside this container
        grandparent, command, start = _stat(parent, proc)
        yield parent, command, start
        parent = grandparent


def _stat(pid: int, proc: Path) -> tuple[int, str, str]:
    """Return (parent, command, start) of a process. The parent is 0 if the process is gone or hidden."""
    # 2769 (hydra_pmi_proxy) S 2767 2767 1523 0 -1 4194304 219 0 0 0 0 0 0 0 20 0 1 0 128334 6238208 ...
    # The command has at most 15 bytes, which may be blanks and parentheses.
    try:
        head, _, tail = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(") ")
    except OSError:
        return 0, "", ""
    words = tail.split()
    return int(words[1]), head.partition(" (")[2], words[19]
