"""The NVIDIA GPUs that a process can see, counted without starting a process or loading a library.

CUDA itself is not used: if it is initialised before a script forks, it is unusable in the children.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"

_DRIVER = Path("/proc/driver/nvidia/gpus")  # one directory per GPU, named by its PCI address: 0000:3b:00.0
_NODES = Path("/dev")  # with nvidia0, nvidia1, ...
_UNLISTED = Path("/dev/dxg")  # the driver of WSL2


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that CUDA would show a process with this environment.

    The GPUs of the machine are listed in /proc and /dev. If only one of the two lists any, it counts: some containers
    have no /proc/driver/nvidia, and device nodes may be created on first use. If both do, the smaller number counts,
    because a container may see all GPUs of its host in /proc and only its own in /dev. If neither does, the result is
    0, whatever CUDA_VISIBLE_DEVICES says: most such machines have no driver, and WSL2 has a driver but lists its GPUs
    nowhere.
    """
    present = _present_gpus()
    visible = environ.get(VISIBLE)
    return present if visible is None else min(present, _count_chosen(visible, present))


def visible_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the value of CUDA_VISIBLE_DEVICES that selects one GPU, for each GPU that `visible_gpus` counts."""
    count = visible_gpus(environ)
    chosen = environ.get(VISIBLE)
    return tuple(map(str, range(count))) if chosen is None else tuple(map(str.strip, chosen.split(",")[:count]))


def listed_gpus() -> int | None:
    """Return the number of GPUs of this machine, or None where it has a driver that lists them nowhere."""
    present = _present_gpus()
    return None if not present and _UNLISTED.exists() else present


def _present_gpus() -> int:
    listed, nodes = _count(_DRIVER, r".+"), _count(_NODES, r"nvidia\d+")
    return min(listed, nodes) if listed and nodes else listed or nodes


def _count(folder: Path, pattern: str) -> int:
    try:
        return sum(re.fullmatch(pattern, entry.name) is not None for entry in folder.iterdir())
    except OSError:
        return 0


def _count_chosen(visible: str, present: int) -> int:
    """Return how many of the `present` GPUs a value of CUDA_VISIBLE_DEVICES selects.

    CUDA enumerates up to the first entry that is not a GPU, and shows none at all if an entry is repeated. The first
    entry determines whether all are indices or UUIDs. (`torch.cuda` reads the variable in the same way.)
    """
    # 0,1,3
    # GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-5b1c...     (the beginning of a UUID is enough)
    # MIG-2f0e...,MIG-77aa...                    (of several instances CUDA shows a process the first only)
    # -1    NoDevFiles    ''                     (none; the second is Slurm's)
    entries = [entry.strip() for entry in visible.split(",")]
    if entries[0].startswith("MIG-"):
        return 1
    chosen: list[str | int] = []
    for entry in entries:
        gpu = entry if entries[0].startswith("GPU-") else _leading_number(entry)
        if isinstance(gpu, int) and not 0 <= gpu < present:
            break
        if isinstance(gpu, str) and not gpu.startswith("GPU-"):
            break
        if gpu in chosen:
            return 0
        chosen.append(gpu)
    return len(chosen)


def _leading_number(entry: str) -> int:
    """Return the number that `entry` begins with, as strtoul reads it, or -1 if there is none."""
    match = re.match(r"[+-]?[0-9]+", entry)
    return int(match[0]) if match else -1
