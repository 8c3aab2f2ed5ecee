"""The GPUs as the kernel describes them: IOMMU, ACS of the bridges above them, NUMA nodes, and whether MPS runs."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from distrun.runner.system.cpus import divided, groups, parse_cpus
from distrun.tools.doctor.gpus import is_virtual

_IOMMU = re.compile(r"\b(?:\w+_)?iommu(?:\.\w+)?=\S+|\bpcie_acs_override=\S+")
_EXTENDED, _ACS = 0x100, 0x000D  # where extended capabilities begin, and the one of access control services
_REDIRECTS = 0b1100  # ACS control: requests of peers, and their completions, are sent up to the root
_MPS_PIPES = "/tmp/nvidia-mps"


@dataclass(frozen=True)
class KernelFacts:
    """The facts from the kernel about GPUs, in the order in which their PCI addresses were given."""

    virtual: bool = False
    """Whether this is a virtual machine."""
    iommus: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    """The type of each GPU's IOMMU group, such as DMA-FQ or identity. Empty = it has none."""
    options: list[str] = field(default_factory=list)
    """The words about the IOMMU on the kernel's command line."""
    bridges: int = 0
    """The number of PCI bridges above the GPUs."""
    redirecting: list[str] | None = None
    """The bridges whose ACS sends the traffic between GPUs up to the root. None = only root may read that."""
    nodes: list[int] = field(default_factory=list)
    """The NUMA node of each GPU. -1 = unknown."""
    allowed: list[int] = field(default_factory=list)
    """The NUMA nodes of the CPUs that ranks may use. Empty = the kernel lists no nodes."""
    bound: dict[str, list[list[int]]] = field(default_factory=dict)
    """For each kind of `--bind-to`, the NUMA nodes of the CPUs of each rank, if there is a rank per GPU."""
    mps: bool = False
    """Whether the control daemon of MPS runs."""


def gather(places: Sequence[str], root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> KernelFacts:
    """Return what the kernel of this host tells of the GPUs at some PCI addresses. `root` contains proc and sys."""
    devices = root / "sys/bus/pci/devices"
    above = sorted({bridge for place in places for bridge in _bridges(devices / place)})
    controls = [acs_control(_bytes(devices / bridge / "config")) for bridge in above]
    redirecting = [bridge for bridge, control in zip(above, controls, strict=True) if (control or 0) & _REDIRECTS]
    allowed = os.sched_getaffinity(0)
    return KernelFacts(
        is_virtual(root),
        _names(root / "sys/class/iommu"),
        [_text(devices / place / "iommu_group/type") for place in places],
        _IOMMU.findall(_text(root / "proc/cmdline")),
        len(above),
        None if None in controls else redirecting,
        [int(_text(devices / place / "numa_node") or -1) for place in places],
        _nodes_of(allowed, root),
        {kind: _bound(kind, allowed, len(places), root) for kind in ("numa", "socket", "core")},
        _mps_runs(root, environ),
    )


def acs_control(config: bytes) -> int | None:
    """Return the control bits of ACS from a bridge's configuration space, 0 if it has no ACS.

    None: the space ends where it does for users other than root.
    """
    if len(config) <= _EXTENDED:
        return None
    place, seen = _EXTENDED, set()
    while place >= _EXTENDED and place + 8 <= len(config) and place not in seen:
        seen.add(place)
        header = int.from_bytes(config[place : place + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[place + 6 : place + 8], "little")
        place = header >> 20
    return 0


def _bridges(device: Path) -> list[str]:
    """Return the PCI addresses on the way to a device: /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0."""
    return [part for part in device.resolve().parts[:-1] if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:.*", part)]


def _nodes_of(cpus: Collection[int], root: Path) -> list[int]:
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    found = {int(folder.name.removeprefix("node")): parse_cpus(_text(folder / "cpulist")) for folder in folders}
    return sorted(node for node, own in found.items() if own & set(cpus))


def _bound(kind: str, allowed: Collection[int], ranks: int, root: Path) -> list[list[int]]:
    found = groups(kind, allowed, root / "sys/devices/system")
    return [_nodes_of(divided(found, rank, ranks), root) for rank in range(ranks)]


def _mps_runs(root: Path, environ: Mapping[str, str]) -> bool:
    """Whether a program of MPS is among the processes, or, in a container, its pipe is there."""
    for process in (root / "proc").glob("[0-9]*/comm"):
        if _text(process).startswith("nvidia-cuda-mps"):
            return True
    pipes = environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_PIPES)
    return (root / pipes.lstrip("/") / "control").is_fifo()


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(entry.name for entry in folder.iterdir())
    return []


def _text(path: Path) -> str:
    return _bytes(path).decode(errors="replace").strip()


def _bytes(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""
