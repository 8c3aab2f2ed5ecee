"""Horovod's questions about how it was built and what it runs on, answered for distrun, where nothing is built."""

from __future__ import annotations

from distrun.runtime import world


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    topology = world.topology()
    return topology.local_size * topology.cross_size == topology.size


def mpi_enabled() -> bool:
    """Whether tensors travel through MPI."""
    return world.engine().backend.name == "MPI"


def mpi_threads_supported() -> bool:
    """Whether mpi4py may be used beside distrun from several threads: it asks for that itself, so yes."""
    return True


def mpi_built() -> bool:
    """Whether the `mpi` backend can be chosen: mpi4py is always installed with distrun."""
    return True


def gloo_enabled() -> bool:
    """Never: ranks of a host share memory instead."""
    return False


def gloo_built() -> bool:
    """Never."""
    return False


def nccl_built() -> int:
    """NCCL's version code, 0 while there is no NCCL backend."""
    return 0


def cuda_built() -> bool:
    """Whether CUDA tensors can be reduced: not yet."""
    return False


def rocm_built() -> bool:
    """Never."""
    return False


def ccl_built() -> bool:
    """Never."""
    return False


def ddl_built() -> bool:
    """Never."""
    return False
