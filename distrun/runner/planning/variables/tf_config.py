"""TF_CONFIG, the variable that describes the cluster to `tf.distribute`. Pure: makes values from endpoints.

Without parameter servers all ranks are workers, as `MultiWorkerMirroredStrategy` expects, and worker 0 is the chief.
With them, as `ParameterServerStrategy` expects, the first ranks are parameter servers, the next is the chief, which
runs the training, and the others are workers. Parameter servers and workers wait for requests for ever, so the job ends
with the chief.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from distrun.errors import UsageError


def values(endpoints: Sequence[str], ps: int = 0) -> list[str]:
    """Return the value of TF_CONFIG for each rank, given the `host:port` of each. The first `ps` ranks are servers."""
    cluster: dict[str, list[str]] = {}
    tasks = []
    for rank, endpoint in enumerate(endpoints):
        kind = _kind(rank, ps)
        listed = cluster.setdefault(kind, [])
        tasks.append({"type": kind, "index": len(listed)})
        listed.append(endpoint)
    return [json.dumps({"cluster": cluster, "task": task}) for task in tasks]


def servers(size: int, ps: int) -> frozenset[int]:
    """Return the ranks that never end by themselves: all but the chief with parameter servers, none without."""
    return frozenset(rank for rank in range(size) if ps and _kind(rank, ps) != "chief")


def check(size: int, ps: int) -> None:
    """Check that `size` ranks can have `ps` parameter servers among them.

    Raises:
        UsageError: they cannot.
    """
    if ps and size < ps + 2:
        raise UsageError(
            f"--ps {ps} of {size} ranks does not leave a chief and a worker: give at least {ps + 2} ranks, or fewer "
            "parameter servers"
        )


def _kind(rank: int, ps: int) -> str:
    if rank < ps:
        return "ps"
    return "chief" if ps and rank == ps else "worker"
