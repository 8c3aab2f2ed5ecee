"""The choice of the transport between the ranks' GPUs: NCCL, or staging through host memory.

Each rank describes its GPU and its NCCL (`gpu_info`), the descriptions are gathered (`agree`), and every rank draws the
same conclusion from them (`choose`, which is pure).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from distrun.contract.settings import GPU_BACKEND
from distrun.errors import UsageError
from distrun.runtime.backends.base import Backend

AUTO, NCCL, STAGED = "auto", "nccl", "staged"

_MINIMUM_VERSION = 21000  # ncclAvg came with 2.10
_SHARING_VERSION = 23000  # NCCL accepts several ranks on one GPU since 2.30


@dataclass(frozen=True)
class GpuInfo:
    """The facts about one rank's GPU and NCCL that the choice depends on."""

    hostname: str
    bus_id: str
    """The PCI address of the GPU."""
    uuid: str
    """The GPU's own identity, the same in containers that call the machine by different names."""
    may_share: bool
    """Whether the user allowed ranks to share a GPU (DISTRUN_SHARE_GPUS)."""
    version: int
    """NCCL's version code, such as 23203, or 0 if NCCL cannot be used."""
    missing: str
    """Why NCCL cannot be used. Empty if it can."""
    can_share: bool
    """Whether the NCCL of this process would accept ranks that share a GPU, if it is new enough."""
    wanted: str
    """The value of DISTRUN_GPU_BACKEND. The value of the first rank counts."""


@dataclass(frozen=True)
class TransportChoice:
    """The transport that all ranks of a group use."""

    kind: str
    """`NCCL` or `STAGED`."""
    shares_gpus: bool
    """Whether some ranks share a GPU."""
    reason: str = ""
    """Why data is staged. Empty for NCCL."""


def gpu_info(
    hostname: str, bus_id: str, uuid: str, may_share: bool, can_share: bool = True, wanted: str = AUTO
) -> GpuInfo:
    """Return the facts about this rank's GPU, whose PCI address is `bus_id`, and its NCCL."""
    version, missing = nccl_version()
    return GpuInfo(hostname, bus_id, uuid, may_share, version, missing, can_share, wanted)


def nccl_version() -> tuple[int, str]:
    """Return (version code of cupy's NCCL, such as 23203, ""), or (0, the reason why NCCL cannot be used)."""
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        return 0, f"cupy cannot be imported ({error}): pip install 'distrun[cuda12]' or 'distrun[cuda13]'"
    if not nccl.available:
        return 0, "cupy finds no libnccl.so.2: pip install nvidia-nccl-cu12 or nvidia-nccl-cu13, as the CUDA version is"
    return int(nccl.get_version()), ""


def agree(own_info: GpuInfo, host_backend: Backend, ranks: Sequence[int]) -> TransportChoice:
    """Choose the transport together with the other ranks of a group. Collective.

    `ranks` are the ranks of the group, by their numbers in the job.

    Raises:
        UsageError: see `choose`. It is raised on all ranks.
    """
    message = np.frombuffer(json.dumps(asdict(own_info)).encode(), np.uint8)
    flat, counts = host_backend.allgather(message, "the choice of how data travels between GPUs")
    parts = np.split(flat, np.cumsum(counts)[:-1])
    return choose({rank: GpuInfo(**json.loads(part.tobytes())) for rank, part in zip(ranks, parts, strict=True)})


def choose(infos: Mapping[int, GpuInfo]) -> TransportChoice:
    """Choose the transport from the descriptions of all ranks' GPUs, in rank order.

    Raises:
        UsageError: the first rank asks for a transport that is impossible, ranks share a GPU without permission, or
            their versions of NCCL differ.
    """
    wanted = _first(infos).wanted
    shared = _shared(infos)
    for ranks in shared:
        if not all(infos[rank].may_share for rank in ranks):
            gpu = infos[ranks[0]]
            raise UsageError(
                f"{_format_ranks(ranks)} use one GPU, {gpu.bus_id} of {gpu.hostname}: start fewer ranks there, let "
                "each see one of its own (CUDA_VISIBLE_DEVICES), or set DISTRUN_SHARE_GPUS=1"
            )
    if wanted == STAGED:
        return TransportChoice(STAGED, bool(shared), f"{GPU_BACKEND}={STAGED}")
    obstacle = _obstacle(infos, shared)
    if not obstacle:
        return TransportChoice(NCCL, bool(shared))
    if wanted == NCCL:
        raise UsageError(f"{GPU_BACKEND}={NCCL} cannot be: {obstacle}")
    return TransportChoice(STAGED, bool(shared), obstacle)


def _first(infos: Mapping[int, GpuInfo]) -> GpuInfo:
    return next(iter(infos.values()))


def _obstacle(infos: Mapping[int, GpuInfo], shared: Sequence[Sequence[int]]) -> str:
    """Return why NCCL cannot be used, or "" if it can."""
    if len(infos) == 1:
        return ""  # nothing is transferred
    for rank, info in infos.items():
        if not info.version:
            return f"rank {rank} (on {info.hostname}) has no NCCL, as {info.missing}"
        if info.version < _MINIMUM_VERSION:
            found, needed = _format_version(info.version), _format_version(_MINIMUM_VERSION)
            return f"rank {rank} (on {info.hostname}) has NCCL {found}: update it to {needed} or newer"
    versions = defaultdict(list)
    for rank, info in infos.items():
        versions[info.version].append(rank)
    if len(versions) > 1:  # NCCL only connects equal versions, including the patch level
        those = ", ".join(
            f"{_format_version(version)} on {_format_ranks(ranks)}" for version, ranks in versions.items()
        )
        raise UsageError(
            f"the ranks have different versions of NCCL ({those}): install the same everywhere, or set "
            f"{GPU_BACKEND}={STAGED}"
        )
    version = _first(infos).version
    if shared and version < _SHARING_VERSION:
        return (
            f"{_format_ranks(shared[0])} share a GPU, which NCCL {_format_version(version)} refuses: update "
            f"it to {_format_version(_SHARING_VERSION)} or newer"
        )
    for ranks in shared:
        if not all(infos[rank].can_share for rank in ranks):
            return (
                f"{_format_ranks(ranks)} share a GPU, and NCCL was used there before by ranks with a GPU each, after "
                "which it refuses to share: set NCCL_MULTI_RANK_GPU_ENABLE=1 before the job starts"
            )
    return ""


def _shared(infos: Mapping[int, GpuInfo]) -> list[list[int]]:
    """Return the ranks of each GPU that several ranks use."""
    users = defaultdict(list)
    for rank, info in infos.items():
        users[info.uuid].append(rank)
    return [ranks for ranks in users.values() if len(ranks) > 1]


def _format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks for a message: `rank 3`, `ranks 0, 1, 2, 3 and 12 more`."""
    shown = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _format_version(version: int) -> str:
    """Format a version code for a message: 23203 is 2.32.3. (Codes up to 2.8 have one digit less.)"""
    if version >= 10000:
        return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return f"{version // 1000}.{version // 100 % 10}.{version % 100}"
