"""The device a rank computes on: which one is its own is decided here, without importing a framework."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.host.gpus import visible_gpus
from distrun.runtime.devices.base import Device
from distrun.runtime.devices.cpu import Cpu
from distrun.runtime.devices.cuda import Cuda
from distrun.runtime.topology import Topology

__all__ = ["Device", "bind"]


def bind(topology: Topology, environ: Mapping[str, str]) -> Device:
    """This rank's device: a GPU where any is visible, the CPU otherwise.

    Raises:
        UsageError: there are fewer GPUs than ranks on this host and `environ` does not allow sharing.
    """
    return Cuda.bind(topology, environ) if visible_gpus(environ) else Cpu.bind(topology, environ)
