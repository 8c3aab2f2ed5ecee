"""The NVIDIA GPUs that a process can see, counted without starting a process or loading a library.

CUDA itself is not asked: a driver that is initialised before a script forks is unusable in the children.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"

_DRIVER = Path("/proc/driver/nvidia/gpus")  # one directory per GPU, named by its PCI address: 0000:3b:00.0
_NODES = Path("/dev")  # with nvidia0, nvidia1, ...


def visible_gpus(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that CUDA would show a process with this environment.

    The GPUs of the machine are those in /proc and /dev. Where just one of the two lists any, that one counts: some
    containers have no /proc/driver/nvidia, and device nodes may be made when they are first used. Where both do, the
    smaller number counts, because a container may see all GPUs of its host in /proc and only its own in /dev. Where
    neither does there is no GPU for us, whatever CUDA_VISIBLE_DEVICES says: no driver on most machines, and on WSL2 a
    driver whose GPUs are listed nowhere.
    """
    present = _present_gpus()
    visible = environ.get(VISIBLE)
    return present if visible is None else min(present, _count_chosen(visible, present))


def visible_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return what to write into CUDA_VISIBLE_DEVICES for each of the GPUs that `visible_gpus` counts."""
    count = visible_gpus(environ)
    chosen = environ.get(VISIBLE)
    return tuple(map(str, range(count))) if chosen is None else tuple(map(str.strip, chosen.split(",")[:count]))


def _present_gpus() -> int:
    listed, nodes = _count(_DRIVER, r".+"), _count(_NODES, r"nvidia\d+")
    return min(listed, nodes) if listed and nodes else listed or nodes


def _count(folder: Path, pattern: str) -> int:
    try:
        return sum(re.fullmatch(pattern, entry.name) is not None for entry in folder.iterdir())
    except OSError:
        return 0


def _count_chosen(visible: str, present: int) -> int:
    """Return how many of the `present` GPUs a value of CUDA_VISIBLE_DEVICES chooses.

    CUDA enumerates up to the first entry that names no GPU, and shows none at all if an entry is repeated. The first
    entry says what the others are: indices or UUIDs. (`torch.cuda` reads the variable in the same way.)
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
    """Return the number that an entry begins with, as strtoul reads it; -1 where there is none."""
    match = re.match(r"[+-]?[0-9]+", entry)
    return int(match[0]) if match else -1
