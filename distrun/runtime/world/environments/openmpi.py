"""Ranks started by Open MPI's mpirun, releases 4 and 5."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.contract.topology import Topology
from distrun.runtime.world.environments.base import Environment, even_topology

_RANK = "OMPI_COMM_WORLD_RANK"
_SIZE = "OMPI_COMM_WORLD_SIZE"
_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
# Open MPI 5: PMIX_NAMESPACE=prterun-vm-2821@1         (launcher's host and process id, then the number of the job)
# Open MPI 4: PMIX_NAMESPACE=3117088769                (OMPI_MCA_ess_base_jobid has the same number)
_NAMESPACE = "PMIX_NAMESPACE"
_JOBID = "OMPI_MCA_ess_base_jobid"
# The daemon of this host: PMIX_SERVER_URI2=prterun-vm-2821@0.0;tcp4://127.0.0.1:58787. It distinguishes jobs that got
# the same number from launchers on different machines (release 4 squeezes host and process id into 16 bits).
_SERVER = "PMIX_SERVER_URI2"


class OpenMpi(Environment):
    name = "Open MPI"
    is_mpi = True

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return _RANK in environ

    def topology(self) -> Topology:
        # OMPI_COMM_WORLD_NODE_RANK does not help: despite its name it is a local rank, too (across the host's jobs).
        return even_topology(*map(self._number, (_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE)))

    def job_name(self) -> str:
        job = self._environ.get(_NAMESPACE) or self._text(_JOBID)
        return f"openmpi.{job}.{self._environ.get(_SERVER, '')}"
