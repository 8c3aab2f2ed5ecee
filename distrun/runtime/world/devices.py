"""The devices: choose the device of a rank, without importing a framework or touching CUDA.

Rank i of a host has GPU i. In an elastic job it keeps its GPU when its rank changes. The number of GPUs that a process
can see is a fact about the machine, which the launcher and the ranks both get from `distrun.host.gpus`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distrun.contract.settings import SHARE_GPUS
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.host.gpus import VISIBLE, visible_gpus

# srun --gpus-per-task=1: every task sees GPUs that no other task sees, and all of them call the first one 0.
_OWN = "SLURM_GPUS_PER_TASK"


@dataclass(frozen=True)
class Device:
    """The device of this rank. It says which one it is, and is not a handle to it, since no driver was called."""

    name: ClassVar[str]
    """The kind, as torch and JAX call it: "cpu", "cuda"."""

    index: int
    """The number of the device among those of its kind that this process sees."""

    def __str__(self) -> str:
        return f"{self.name}:{self.index}"


class Cpu(Device):
    """The host's processors and memory. Pinning ranks to cores is left to the launcher and the operating system."""

    name: ClassVar[str] = "cpu"


@dataclass(frozen=True)
class Cuda(Device):
    """The GPU of a rank: an index for the framework's own `set_device`, which distrun's packages for the frameworks
    call, and for distrun's own streams.

    Nothing here touches CUDA, since a driver that is initialised before the script forks is unusable in the children.
    It is initialised when the first tensor on a GPU comes. See `distrun.runtime.gpu`.
    """

    name: ClassVar[str] = "cuda"

    sharers: int = 1
    """The number of ranks of this host that use this GPU."""


def bind(topology: Topology, environ: Mapping[str, str], share_gpus: bool = False, slot: int | None = None) -> Device:
    """Return this rank's device: a GPU where any is visible, otherwise the CPU, which all ranks of a host share.

    `slot` is the place on its host that this process keeps for life. None: its local rank.

    Raises:
        UsageError: there are fewer GPUs than ranks, and ranks may not share them.
    """
    gpus, ranks = visible_gpus(environ), topology.local_size
    place = topology.local_rank if slot is None else slot
    if not gpus:
        return Cpu(0)
    if gpus >= ranks and gpus > place:
        return Cuda(place)
    if environ.get(_OWN):
        return Cuda(0)
    if share_gpus:
        index = place % gpus
        return Cuda(index, sharers=len(range(index, max(ranks, place + 1), gpus)))
    if gpus >= ranks:
        raise UsageError(
            f"slot {place} of {topology.hostname} has no GPU, for {gpus} are visible there: give the host at most "
            f"{gpus} slots, or set {VISIBLE}='' to train on the CPU"
        )
    raise UsageError(
        f"{ranks} ranks on {topology.hostname} but only {gpus} visible GPU{'' if gpus == 1 else 's'}: "
        f"start at most {gpus} there, give distrun --share-gpus (or set {SHARE_GPUS}=1) to let ranks share them, "
        f"or set {VISIBLE}='' to train on the CPU"
    )
