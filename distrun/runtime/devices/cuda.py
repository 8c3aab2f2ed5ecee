"""NVIDIA GPUs: rank i of a host has GPU i."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from distrun.errors import UsageError
from distrun.runtime.devices.base import Device
from distrun.runtime.topology import Topology

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SHARE = "DISTRUN_SHARE_GPUS"  # 1: ranks may share a GPU when there are too few
# srun --gpus-per-task=1: every task sees GPUs that no other task sees, and all of them call the first one 0.
_OWN = "SLURM_GPUS_PER_TASK"
_GPUS = Path("/proc/driver/nvidia/gpus")  # one directory per GPU, named by its PCI address: 0000:3b:00.0
_NODES = Path("/dev")  # with nvidia0, nvidia1, ...


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
            f"give distrun --share-gpus (or set {_SHARE}=1) to let ranks share them, or set {_VISIBLE}='' to train on the CPU"
        )


def may_share(environ: Mapping[str, str]) -> bool:
    """Whether ranks may share a GPU; raises `UsageError` for what is neither yes nor no."""
    choice = environ.get(_SHARE) or "0"
    if choice not in ("0", "1"):
        raise UsageError(f"{_SHARE}={choice!r} is neither 1 (ranks may share a GPU) nor 0: correct it, or unset it")
    return choice == "1"


def visible_gpus(environ: Mapping[str, str]) -> int:
    """How many GPUs CUDA would show this process, as far as files and variables tell; 0 without NVIDIA's driver."""
    present = _present_gpus()
    visible = environ.get(_VISIBLE)
    return present if visible is None else min(present, _count_listed(visible, present))


def _present_gpus() -> int:
    """A container may see all GPUs of its host in /proc and only its own in /dev; some see none in /proc."""
    listed = sum(1 for _ in _GPUS.iterdir()) if _GPUS.is_dir() else 0
    nodes = sum(path.name.removeprefix("nvidia").isdecimal() for path in _NODES.glob("nvidia[0-9]*"))
    return min(listed, nodes) if listed and nodes else listed or nodes


def _count_listed(visible: str, present: int) -> int:
    """How many GPUs a CUDA_VISIBLE_DEVICES lets through: as in CUDA, the first word that names none ends the list."""
    # 0,1,3
    # GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-5b1c...
    # MIG-2f0e...          (of several instances a process sees the first only)
    # -1, NoDevFiles, ''   (none; the second is Slurm's)
    count = 0
    for word in visible.split(","):
        word = word.strip()
        if word.startswith("MIG-"):
            return max(count, 1)
        if not (word.startswith("GPU-") or (word.isdecimal() and int(word) < present)):
            break
        count += 1
    return count
