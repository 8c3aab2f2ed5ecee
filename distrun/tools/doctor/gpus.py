"""The NVIDIA GPUs of a host: driver, names, memory, access to each other's memory (P2P), and possible obstacles.

Most facts come from files of the kernel and from `nvidia-smi`. The driver's library is asked only about its CUDA
version and access between GPUs. That creates no context, so it takes no memory on any GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distrun.tools.doctor.machine_facts import installed_version

_SMI_TIMEOUT = 15.0  # seconds for nvidia-smi, which is slow on a host with eight GPUs and no persistence daemon
_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_CUPY_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
# NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22)
_DRIVER = re.compile(r"NVRM version:.*?\s(\d{3,}\.\d+(?:\.\d+)?)\s")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)  # Model: 		 NVIDIA H100 80GB HBM3


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a host, in the order of their PCI addresses."""

    names: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """The bytes of memory of each GPU. Empty = unknown."""
    driver: str = ""
    nccl: str = ""
    """The version of the installed NCCL. Empty = none was found."""
    peers: list[list[bool]] | None = None
    """Whether GPU [i] can access the memory of GPU [j]. None = unknown."""
    iommu: list[str] = field(default_factory=list)
    """The PCI addresses of GPUs whose traffic an IOMMU translates, on a machine that is not virtual."""
    problem: str = ""
    """The reason why existing GPUs cannot be used."""
    cuda: int = 0
    """The newest CUDA that the driver supports, such as 12040 for 12.4. 0 = unknown."""
    cupy: str = ""
    """The package that provides cupy, such as cupy-cuda12x. Empty = it is not installed."""


def gather(root: Path = Path("/"), cuda: Callable[[], Any] | None = None, smi: str | None = None) -> Gpus:
    """Return the GPUs of this host.

    Args:
        root: the folder that contains proc and sys.
        cuda: loads the driver's library, or raises OSError.
        smi: the path of nvidia-smi. None = the one on PATH.
    """
    driver = _driver(root)
    places = _places(root)
    if not driver:
        without = _devices(root)
        problem = f"{without} NVIDIA device(s), and no driver is loaded" if without else ""
        return Gpus(problem=problem)
    models = [_model(place) for place in places]
    names, memory, problem = _ask(smi or shutil.which("nvidia-smi"))
    load = cuda or (lambda: ctypes.CDLL("libcuda.so.1"))
    return Gpus(
        names or models,
        memory,
        driver,
        nccl(),
        peers(load),
        [] if is_virtual(root) else [place.name for place in places if _is_translated(root, place.name)],
        problem,
        cuda_version(load),
        next((package for package in _CUPY_PACKAGES if installed_version(package)), ""),
    )


def cuda_version(load: Callable[[], Any]) -> int:
    """Return the newest CUDA that the driver supports, such as 12040, or 0 if its library is missing or fails."""
    version = ctypes.c_int()
    with suppress(OSError):
        if not load().cuDriverGetVersion(ctypes.byref(version)):
            return version.value
    return 0


def peers(load: Callable[[], Any]) -> list[list[bool]] | None:
    """Return which GPU can access the memory of which, or None if the driver's library is missing or fails."""
    try:
        cuda = load()
    except OSError:
        return None
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return None
    devices = []
    for ordinal in range(count.value):
        device = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal):
            return None
        devices.append(device.value)
    return [[one == other or _can_access(cuda, one, other) for other in devices] for one in devices]


def _can_access(cuda: Any, one: int, other: int) -> bool:
    answer = ctypes.c_int()
    failed = cuda.cuDeviceCanAccessPeer(ctypes.byref(answer), one, other)
    return not failed and bool(answer.value)


def nccl() -> str:
    """Return the version of the NCCL that a framework here would load, without importing a framework."""
    if version := next(filter(None, map(installed_version, _NCCL_PACKAGES)), ""):
        return version
    try:
        library = ctypes.CDLL("libnccl.so.2")
        number = ctypes.c_int()
        if library.ncclGetVersion(ctypes.byref(number)):
            return ""
    except (OSError, AttributeError):
        return ""
    return nccl_version(number.value)


def nccl_version(number: int) -> str:
    """Return NCCL's version from its number: 2.21.5 from 22105, and 2.8.3 from 2803, the format before 2.9."""
    thousand = 1000 if number < 10000 else 10000
    return f"{number // thousand}.{number % thousand // 100}.{number % 100}"


def _driver(root: Path) -> str:
    match = _DRIVER.search(_read(root / "proc/driver/nvidia/version"))
    return match[1] if match else ""


def _places(root: Path) -> list[Path]:
    with suppress(OSError):
        return sorted((root / "proc/driver/nvidia/gpus").iterdir())
    return []


def _model(place: Path) -> str:
    match = _MODEL.search(_read(place / "information"))
    return match[1] if match else "NVIDIA GPU"


def _ask(smi: str | None) -> tuple[list[str], list[int], str]:
    """Return the names and bytes of memory that nvidia-smi prints, and its failure, or ""."""
    if smi is None:
        return [], [], ""
    try:
        done = subprocess.run(
            [smi, *_QUERY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SMI_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return [], [], f"nvidia-smi did not answer within {_SMI_TIMEOUT:g} s"
    except OSError as error:
        return [], [], f"nvidia-smi cannot be started: {error.strerror}"
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        return [], [], f"nvidia-smi failed: {said[-1] if said else f'exit code {done.returncode}'}"
    return *parse_smi(done.stdout), ""


def parse_smi(text: str) -> tuple[list[str], list[int]]:
    """Return names and bytes of memory from the output of nvidia-smi; no memory if any GPU's is missing.

    Real sample: `NVIDIA H100 80GB HBM3, 81559`. A GB10 has `NVIDIA GB10, [N/A]`.
    """
    rows = [line.rpartition(",") for line in text.splitlines() if line.strip()]
    sizes = [size.strip() for _, _, size in rows]
    known = all(size.isdecimal() for size in sizes)
    return [name.strip() for name, _, _ in rows], [int(size) << 20 for size in sizes] if known else []


def _devices(root: Path) -> int:
    """Return the number of NVIDIA's display devices on the PCI bus."""
    found = 0
    with suppress(OSError):
        for device in (root / "sys/bus/pci/devices").iterdir():
            vendor, kind = _read(device / "vendor").strip(), _read(device / "class").strip()
            found += vendor == "0x10de" and kind.startswith("0x03")
    return found


def is_virtual(root: Path) -> bool:
    """Whether this is a virtual machine, where an IOMMU is necessary."""
    return re.search(r"^flags\s*:.*\bhypervisor\b", _read(root / "proc/cpuinfo"), re.MULTILINE) is not None


def _is_translated(root: Path, place: str) -> bool:
    """Whether an IOMMU translates the addresses of a device: its group is of the type DMA or DMA-FQ, not identity."""
    return _read(root / "sys/bus/pci/devices" / place / "iommu_group/type").startswith("DMA")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
