"""How data travels between the ranks' GPUs: through NCCL, or staged in the hosts' memory. All ranks choose the same."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from distrun.errors import UsageError
from distrun.runtime.backends.base import Backend

AUTO, NCCL, STAGED = "auto", "nccl", "staged"

_VARIABLE = "DISTRUN_GPU_BACKEND"
_LEAST = 21000  # ncclAvg came with 2.10
_SHARING = 23000  # several ranks on a GPU: since 2.30


@dataclass(frozen=True)
class Report:
    """What one rank tells the others."""

    host: str
    bus_id: str
    """The PCI address of its GPU."""
    may_share: bool
    """Whether it was told that ranks may share a GPU."""
    version: int
    """NCCL's version code, such as 23203; 0 without."""
    missing: str
    """Why there is none."""
    wanted: str
    """What DISTRUN_GPU_BACKEND says; that of rank 0 counts."""


@dataclass(frozen=True)
class Choice:
    """How it is to be done."""

    kind: str
    """`NCCL` or `STAGED`."""
    shares: bool
    """Whether some ranks share a GPU."""
    reason: str = ""
    """Why it is staged."""


def report(host: str, bus_id: str, may_share: bool, environ: Mapping[str, str] = os.environ) -> Report:
    """This rank's report."""
    version, missing = nccl_version()
    return Report(host, bus_id, may_share, version, missing, environ.get(_VARIABLE) or AUTO)


def nccl_version() -> tuple[int, str]:
    """The version code of the NCCL that cupy uses here, such as 23203; or 0, and why there is none."""
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        return 0, f"cupy cannot be imported ({error}): pip install 'distrun[cuda12]' or 'distrun[cuda13]'"
    if not nccl.available:
        return 0, "cupy finds no libnccl.so.2: pip install nvidia-nccl-cu12 or nvidia-nccl-cu13, as the CUDA version is"
    return int(nccl.get_version()), ""


def agree(own: Report, host: Backend) -> Choice:
    """Make the choice, with the other ranks; collective.

    Raises:
        UsageError: as `choose`; on all ranks.
    """
    message = np.frombuffer(json.dumps(asdict(own)).encode(), np.uint8)
    flat, counts = host.allgather(message, "the choice of how data travels between GPUs")
    parts = np.split(flat, np.cumsum(counts)[:-1])
    return choose([Report(**json.loads(part.tobytes())) for part in parts])


def choose(reports: Sequence[Report]) -> Choice:
    """The choice that follows from the reports, by rank.

    Raises:
        UsageError: what rank 0 wants is impossible, ranks share a GPU and may not, or their NCCLs cannot talk to each other.
    """
    wanted = reports[0].wanted
    if wanted not in (AUTO, NCCL, STAGED):
        raise UsageError(f"{_VARIABLE}={wanted!r} on rank 0: use {AUTO}, {NCCL} or {STAGED}")
    shared = _shared(reports)
    for ranks in shared:
        if not all(reports[rank].may_share for rank in ranks):
            gpu = reports[ranks[0]]
            raise UsageError(
                f"{_several(ranks)} use one GPU, {gpu.bus_id} of {gpu.host}: start fewer ranks there, let each see one of its "
                "own (CUDA_VISIBLE_DEVICES), or set DISTRUN_SHARE_GPUS=1"
            )
    if wanted == STAGED:
        return Choice(STAGED, bool(shared), f"{_VARIABLE}={STAGED}")
    obstacle = _obstacle(reports, shared)
    if not obstacle:
        return Choice(NCCL, bool(shared))
    if wanted == NCCL:
        raise UsageError(f"{_VARIABLE}={NCCL} cannot be: {obstacle}")
    return Choice(STAGED, bool(shared), obstacle)


def _obstacle(reports: Sequence[Report], shared: Sequence[Sequence[int]]) -> str:
    """Why NCCL cannot be used; empty if it can."""
    if len(reports) == 1:
        return ""  # nothing travels
    for rank, one in enumerate(reports):
        if not one.version:
            return f"rank {rank} (on {one.host}) has no NCCL, as {one.missing}"
        if one.version < _LEAST:
            return f"rank {rank} (on {one.host}) has NCCL {_spelled(one.version)}: update it to {_spelled(_LEAST)} or newer"
    versions = defaultdict(list)
    for rank, one in enumerate(reports):
        versions[one.version].append(rank)
    if len(versions) > 1:  # NCCL refuses it, to the last digit
        those = ", ".join(f"{_spelled(version)} on {_several(ranks)}" for version, ranks in versions.items())
        raise UsageError(
            f"the ranks have different versions of NCCL ({those}): install the same everywhere, or set {_VARIABLE}={STAGED}"
        )
    if shared and reports[0].version < _SHARING:
        return (
            f"{_several(shared[0])} share a GPU, which NCCL {_spelled(reports[0].version)} refuses: update it to "
            f"{_spelled(_SHARING)} or newer"
        )
    return ""


def _shared(reports: Sequence[Report]) -> list[list[int]]:
    """The ranks of each GPU that has several."""
    users = defaultdict(list)
    for rank, one in enumerate(reports):
        users[one.host, one.bus_id].append(rank)
    return [ranks for ranks in users.values() if len(ranks) > 1]


def _several(ranks: Sequence[int]) -> str:
    """Ranks for people: `rank 3`, `ranks 0, 1, 2, 3 and 12 more`."""
    shown = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _spelled(version: int) -> str:
    """A version code for people: 23203 is 2.32.3. (Up to 2.8 there was one digit less.)"""
    if version >= 10000:
        return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return f"{version // 1000}.{version // 100 % 10}.{version % 100}"
