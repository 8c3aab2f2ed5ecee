"""NVIDIA GPUs: rank i of a host has GPU i. In an elastic job it keeps its GPU when its rank changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distrun.contract.settings import SHARE_GPUS
from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.host.gpus import VISIBLE, visible_gpus
from distrun.runtime.world.devices.base import Device

# srun --gpus-per-task=1: every task sees GPUs that no other task sees, and all of them call the first one 0.
_OWN = "SLURM_GPUS_PER_TASK"


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

    @classmethod
    def bind(
        cls, topology: Topology, environ: Mapping[str, str], share_gpus: bool = False, slot: int | None = None
    ) -> Cuda:
        gpus, ranks = visible_gpus(environ), topology.local_size
        place = topology.local_rank if slot is None else slot
        if gpus >= ranks and gpus > place:
            return cls(index=place)
        if gpus and environ.get(_OWN):
            return cls(index=0)
        if gpus and share_gpus:
            index = place % gpus
            return cls(index, sharers=len(range(index, max(ranks, place + 1), gpus)))
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
