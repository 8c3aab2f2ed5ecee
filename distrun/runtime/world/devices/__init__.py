"""The devices: which one belongs to a rank is decided here, without importing a framework or touching CUDA.

`bind` decides, `cpu` and `cuda` are the kinds there are, and `base` documents what they have in common. How many GPUs
a process can see is a fact of the machine, which `distrun.host.gpus` tells the launcher and the ranks alike.
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
    """Return this rank's device: a GPU where any is visible, the CPU otherwise.

    Args:
        topology: the place of the rank.
        environ: the variables that say which GPUs are visible.
        share_gpus: whether ranks may share a GPU where there are fewer GPUs than ranks on this host.
        slot: the place on its host that this process has for life; None: its local rank.

    Raises:
        UsageError: there are fewer, and they may not.
    """
    kind = Cuda if visible_gpus(environ) else Cpu
    return kind.bind(topology, environ, share_gpus, slot)
