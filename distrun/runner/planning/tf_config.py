"""TF_CONFIG, the variable by which `tf.distribute` learns of its cluster. Pure: addresses in, the variable's values out.

Without parameter servers all ranks are workers, as `MultiWorkerMirroredStrategy` has it; worker 0 is the chief there.
With them, as `ParameterServerStrategy` has it, the first ranks are parameter servers, the next is the chief, which runs the
training, and the others are workers. Parameter servers and workers wait for orders for ever, so the job is over when the
chief is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from distrun.errors import UsageError


def values(places: Sequence[str], ps: int = 0) -> list[str]:
    """The value for each rank.

    Args:
        places: `host:port` for each rank, where it listens.
        ps: how many ranks are parameter servers.
    """
    cluster: dict[str, list[str]] = {}
    tasks = []
    for rank, place in enumerate(places):
        kind = _kind(rank, ps)
        listed = cluster.setdefault(kind, [])
        tasks.append({"type": kind, "index": len(listed)})
        listed.append(place)
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def servers(size: int, ps: int) -> frozenset[int]:
    """The ranks that wait for orders for ever: with parameter servers, all but the chief."""
    return frozenset(rank for rank in range(size) if ps and _kind(rank, ps) != "chief")


def check(size: int, ps: int) -> None:
    """Whether so many ranks can have so many parameter servers among them.

    Raises:
        UsageError: they cannot.
    """
    if ps and size < ps + 2:
        raise UsageError(
            f"--ps {ps} of {size} ranks leaves no chief and worker: give at least {ps + 2} ranks, or fewer parameter servers"
        )


def _kind(rank: int, ps: int) -> str:
    if rank < ps:
        return "ps"
    return "chief" if ps and rank == ps else "worker"
