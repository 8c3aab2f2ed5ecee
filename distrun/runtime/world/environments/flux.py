"""Ranks started by `flux run` or `flux submit`."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.runtime.world.environments.base import Environment, even_topology

# flux run -N2 -n4 gives the third task: FLUX_TASK_RANK=2 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=0 FLUX_JOB_NNODES=2
# FLUX_JOB_ID=fABCdef3 (in F58), and also FLUX_URI and the PMI-1 variables that an MPI library starts with. A batch
# script has only FLUX_URI.
_RANK = "FLUX_TASK_RANK"
_SIZE = "FLUX_JOB_SIZE"
_LOCAL_RANK = "FLUX_TASK_LOCAL_ID"
_HOSTS = "FLUX_JOB_NNODES"
_JOB = "FLUX_JOB_ID"


class Flux(Environment):
    name = "Flux"
    is_mpi = True  # Flux provides PMI to every job, so with several hosts MPI can tell where rank 0 is

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return _RANK in environ and _JOB in environ

    def topology(self) -> Topology:
        rank, size, hosts = self._number(_RANK), self._number(_SIZE), self._number(_HOSTS)
        local_rank = self._number(_LOCAL_RANK)
        local_size = size // max(hosts, 1)
        if local_size * hosts != size:
            raise UsageError(
                f"Flux started {size} ranks on {hosts} hosts, and does not tell how many are on this one: give "
                "--tasks-per-node, or start the script with `distrun`"
            )
        return even_topology(rank, size, local_rank, local_size)

    def job_name(self) -> str:
        return f"flux.{self._text(_JOB)}.{socket.gethostname()}"
