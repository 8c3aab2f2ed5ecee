"""The interface of a device. The members are documented here and nowhere else."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distrun.contract.topology import Topology


@dataclass(frozen=True)
class Device(abc.ABC):
    """The device that belongs to this rank: a note of which one it is, not a handle, since no driver was asked."""

    name: ClassVar[str]
    """The kind, as torch and JAX call it: "cpu", "cuda"."""

    index: int
    """The number of the device among those of its kind that this process sees."""

    @classmethod
    @abc.abstractmethod
    def bind(
        cls, topology: Topology, environ: Mapping[str, str], share_gpus: bool = False, slot: int | None = None
    ) -> Device:
        """Return the device for the rank at `topology`; see `distrun.runtime.world.devices.bind`.

        Raises:
            UsageError: there is none for it.
        """

    def __str__(self) -> str:
        return f"{self.name}:{self.index}"
