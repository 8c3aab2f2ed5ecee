"""The interface of a device; what its members mean is documented here and nowhere else."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from distrun.runtime.topology import Topology


@dataclass(frozen=True)
class Device(abc.ABC):
    """The device that belongs to this rank. A note of which one it is, not a handle: no driver was asked."""

    name: ClassVar[str]
    """The kind, as torch and JAX call it: "cpu", "cuda"."""

    index: int
    """Which one of the kind, as this process counts them."""

    @classmethod
    @abc.abstractmethod
    def bind(cls, topology: Topology, environ: Mapping[str, str]) -> Device:
        """The device for the rank at `topology`.

        Raises:
            UsageError: there is none for it.
        """

    def __str__(self) -> str:
        return f"{self.name}:{self.index}"
