"""The devices: choose the device of a rank, without importing a framework or touching CUDA.

`bind` chooses. `cpu` and `cuda` are the two kinds, and `base` documents their interface. The number of GPUs that a
process can see is a fact about the machine, which the launcher and the ranks both get from `distrun.host.gpus`.
"""

from __future__ import annotations

from collections.abc import Mapping

from distrun.contract.topology import Topology
from distrun.host.gpus import visible_gpus
from distrun.runtime.world.devices.base import Device
from distrun.runtime.world.devices.cpu import Cpu
from distrun.runtime.world.devices.cuda import Cuda

__all__ = ["Device", "bind"]


def bind(topology: Topology, environ: Mapping[str, str], share_gpus: bool = False, slot: int | None = None) -> Device:
    """Return this rank's device: a GPU where any is visible, otherwise the CPU.

    Args:
        topology: the place of the rank.
        environ: the variables that define which GPUs are visible.
        share_gpus: whether ranks may share a GPU where there are fewer GPUs than ranks on this host.
        slot: the place on its host that this process keeps for life. None: its local rank.

    Raises:
        UsageError: there are fewer GPUs than ranks, and ranks may not share them.
    """
    kind = Cuda if visible_gpus(environ) else Cpu
    return kind.bind(topology, environ, share_gpus, slot)
