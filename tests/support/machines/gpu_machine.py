"""A machine with two GPUs for tests of the doctor: a few files, and a libcuda of a few lines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
PLACES = ["0000:18:00.0", "0000:3b:00.0"]


class Driver:
    """libcuda with that many GPUs, and the pairs that can access each other."""

    def __init__(self, count: int, able: Iterable[tuple[int, int]] = (), broken: bool = False) -> None:
        self._count = count
        self._able = set(able)
        self._broken = broken

    def cuInit(self, flags: int) -> int:  # noqa: N802 # the library's name
        return 100 if self._broken else 0

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = 12040
        return 1 if self._broken else 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self._count
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = ordinal
        return 0

    def cuDeviceCanAccessPeer(self, answer: Any, one: Any, other: Any) -> int:  # noqa: N802
        answer._obj.value = (one, other) in self._able
        return 0


def missing() -> Driver:
    """Raise what loading libcuda does on a machine without one."""
    raise OSError("libcuda.so.1: cannot open shared object file")


def write(root: Path, path: str, text: str) -> None:
    """Write a file below `root`."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def two_gpus(root: Path) -> Path:
    """Make a machine with two GPUs below `root`."""
    write(root, "proc/driver/nvidia/version", DRIVER)
    write(root, "proc/cpuinfo", "flags\t\t: fpu vme\n")
    for place in PLACES:
        write(root, f"proc/driver/nvidia/gpus/{place}/information", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
        write(root, f"sys/bus/pci/devices/{place}/vendor", "0x10de\n")
        write(root, f"sys/bus/pci/devices/{place}/class", "0x030200\n")
        write(root, f"sys/bus/pci/devices/{place}/iommu_group/type", "identity\n")
    return root
