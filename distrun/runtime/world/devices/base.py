"""The interface of a device. Its members are documented only here."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distrun.contract.topology import Topology


@dataclass(frozen=True)
class Device(abc.ABC):
    """The device of this rank. It says which one it is, and is not a handle to it, since no driver was called."""

    name: ClassVar[str]
    """The kind, as torch and JAX call it: "cpu", "cuda"."""

    index: int
    """The number of the device among those of its kind that this process sees."""

    @classmethod
    @abc.abstractmethod
    def bind(
        cls, topology: Topology, environ: Mapping[str, str], share_gpus: bool = False, slot: int | None = None
    ) -> Device:
        """Return the device for the rank at `topology`. See `distrun.runtime.world.devices.bind`.

        Raises:
            UsageError: there is no device for it.
        """

    def __str__(self) -> str:
        return f"{self.name}:{self.index}"
