"""The CPU, which all ranks of a host share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from distrun.contract.topology import Topology
from distrun.runtime.world.devices.base import Device


class Cpu(Device):
    """The host's processors and memory. Pinning ranks to cores is left to the launcher and the operating system."""

    name: ClassVar[str] = "cpu"

    @classmethod
    def bind(
        cls, topology: Topology, environ: Mapping[str, str], share_gpus: bool = False, slot: int | None = None
    ) -> Cpu:
        return cls(index=0)
