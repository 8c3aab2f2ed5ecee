"""NVIDIA GPUs: rank i of a host has GPU i."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distrun.errors import UsageError
from distrun.host.gpus import VISIBLE, visible_gpus
from distrun.runtime.devices.base import Device
from distrun.runtime.topology import Topology

_SHARE = "DISTRUN_SHARE_GPUS"  # 1: ranks may share a GPU when there are too few
# srun --gpus-per-task=1: every task sees GPUs that no other task sees, and all of them call the first one 0.
_OWN = "SLURM_GPUS_PER_TASK"


@dataclass(frozen=True)
class Cuda(Device):
    """The index of a GPU, for the framework's own `set_device`, which the faces call, and for distrun's own streams.

    Nothing here touches CUDA: a driver initialised before the script forks would be unusable in its children. It is touched
    when the first tensor on a GPU comes; see `distrun.runtime.gpu`.
    """

    name: ClassVar[str] = "cuda"

    sharers: int = 1
    """How many ranks of this host have this GPU."""

    @classmethod
    def bind(cls, topology: Topology, environ: Mapping[str, str]) -> Cuda:
        gpus, rank, ranks = visible_gpus(environ), topology.local_rank, topology.local_size
        if gpus >= ranks:
            return cls(index=rank)
        if gpus and environ.get(_OWN):
            return cls(index=0)
        if gpus and may_share(environ):
            index = rank % gpus
            return cls(index, sharers=len(range(index, ranks, gpus)))
        raise UsageError(
            f"{ranks} ranks on {topology.hostname} but only {gpus} visible GPUs: start at most {gpus} there, "
            f"give distrun --share-gpus (or set {_SHARE}=1) to let ranks share them, or set {VISIBLE}='' to train on the CPU"
        )


def may_share(environ: Mapping[str, str]) -> bool:
    """Whether ranks may share a GPU; raises `UsageError` for what is neither yes nor no."""
    choice = environ.get(_SHARE) or "0"
    if choice not in ("0", "1"):
        raise UsageError(f"{_SHARE}={choice!r} is neither 1 (ranks may share a GPU) nor 0: correct it, or unset it")
    return choice == "1"
