"""Facts about the job and this rank that scripts ask for.

Most are Horovod's questions about how it was built. Nothing of distrun is built where it is installed, so the answers
say what is installed, and what moves the tensors.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

from distrun.contract import horovod
from distrun.errors import UsageError
from distrun.runtime.gpu.buffers import held_bytes
from distrun.runtime.world import world

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
    "start_timeline",
    "stop_timeline",
]
"""Horovod's questions, which the packages for torch, TensorFlow and Keras export as well."""


def is_homogeneous() -> bool:
    """Return whether every host has the same number of ranks."""
    topology = world.topology()
    return topology.local_size * topology.cross_size == topology.size


def communication_memory() -> dict[str, int]:
    """Return the bytes that communication holds on this rank, by kind. Kinds without any bytes are left out.

    Returns:
        On the GPU "gradient buckets", "fusion buffers" and "error feedback". In host memory "pinned staging" and
        "shared memory". The latter is the memory shared by the ranks of a host that this rank has allocated, including
        large results, which belong to the caller. Memory that NCCL allocates itself is not counted.
    """
    totals = held_bytes()
    shared = world.engine().backend.shared_bytes if world.is_initialized() else 0
    return {**totals, "shared memory": shared} if shared else totals


def mpi_enabled() -> bool:
    """Return whether tensors are sent through MPI."""
    return world.engine().backend.name == "MPI"


def mpi_threads_supported() -> bool:
    """Return True: mpi4py asks MPI for thread support, and may be used beside distrun from several threads."""
    return True


def mpi_built() -> bool:
    """Return True: the `mpi` backend can be chosen, since mpi4py is always installed with distrun."""
    return True


def gloo_enabled() -> bool:
    """Return False: the ranks of a host share memory instead."""
    return False


def gloo_built() -> bool:
    """Return whether Horovod mode is on, where scripts ask this to find out whether ranks can do without MPI. distrun
    itself has no Gloo."""
    return horovod.is_on(os.environ)


@cache
def nccl_built() -> int:
    """Return the version code of the NCCL that moves tensors between GPUs, such as 23203, or 0 if cupy or NCCL cannot
    be loaded here.

    The result says nothing about this host's GPUs, and touches none. The first call imports cupy, which takes a second.
    """
    from distrun.runtime.gpu import transport_choice

    try:
        version, _ = transport_choice.nccl_version()
    except Exception:  # anything that a broken installation may raise
        return 0
    return version


def cuda_built() -> bool:
    """Return whether cupy is installed, which is needed for tensors on GPUs."""
    return find_spec("cupy") is not None


def rocm_built() -> bool:
    """Return False: tensors on AMD GPUs are not supported."""
    return False


def ccl_built() -> bool:
    """Return False: distrun has no oneCCL backend."""
    return False


def ddl_built() -> bool:
    """Return False: distrun has no DDL backend."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start recording this rank's activity, for a timeline in Chrome's trace event format.

    The timeline contains all ranks that call this with the same file, under any launcher. Ranks that share no file
    system with rank 0 write a file of this name on their own host. The times in all files are since 1970. With
    distrun's own launcher, `distrun --timeline` does this without a call.

    In Horovod mode only rank 0 writes, while the job runs, the file that Horovod's rank 0 writes. A call during a
    timeline ends it and begins the next.

    Args:
        file_path: the file that `stop_timeline` writes, compressed if its name ends in .gz.
        mark_cycles: whether to mark when decisions of the coordinator arrive.

    Raises:
        NotInitializedError: `init` was not called.
        UsageError: the file cannot be written, a timeline is being recorded already, or events are not recorded. In
            Horovod mode on rank 0 only.
    """
    from dataclasses import replace

    from distrun.contract import settings
    from distrun.runtime.world import timeline

    topology = world.topology()
    chosen = settings.current()
    mark_cycles = mark_cycles or chosen.timeline_mark_cycles
    if chosen.horovod:
        world.begin_horovods_timeline(os.fspath(file_path), mark_cycles)
        return
    if timeline.is_recording():
        raise UsageError(
            f"start_timeline({file_path!r}): a timeline is being recorded already: stop_timeline() ends it"
        )
    timeline.begin(replace(chosen, timeline=os.fspath(file_path), timeline_mark_cycles=mark_cycles), topology)
    world.after_shutdown(timeline.end)


def stop_timeline() -> None:
    """Stop recording. The first of the recording ranks that calls this writes the file, and stops the other ranks, too.

    `shutdown` calls this, and so does the exit of the interpreter. The other ranks' calls return at once. In Horovod
    mode, calls by ranks without a timeline do so, too.

    Raises:
        UsageError: no timeline is being recorded.
    """
    from distrun.runtime.world import timeline

    if horovod.is_on(os.environ):
        timeline.end_horovods()
        return
    if not timeline.is_recording():
        raise UsageError("stop_timeline(): no timeline is being recorded: start_timeline(file) begins one")
    timeline.end()
