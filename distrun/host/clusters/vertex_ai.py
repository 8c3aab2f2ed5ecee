"""Custom training jobs of Google's Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping

from distrun.errors import UsageError
from distrun.host.clusters.place import HostPlace, parse

# {"cluster": {"workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
#              "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"]},
#  "task": {"type": "workerpool1", "index": 0}, "environment": "cloud"}
_SPEC = "CLUSTER_SPEC"
_NAME = "Vertex AI"


def read(environ: Mapping[str, str]) -> HostPlace | None:
    """Return the place of this replica, or None outside of Vertex AI. Replicas of workerpool0 are first.

    Raises:
        UsageError: the cluster's description is invalid.
    """
    if _SPEC not in environ:
        return None
    spec = parse(environ[_SPEC], _SPEC, _NAME)
    try:
        pools = {str(name): [str(replica) for replica in replicas] for name, replicas in spec["cluster"].items()}
        pool, index = str(spec["task"]["type"]), int(spec["task"]["index"])
        place = sum(len(pools[name]) for name in sorted(pools) if name < pool) + index
        leader = pools[min(pools)][0].rpartition(":")[0]
        is_there = 0 <= index < len(pools[pool])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        is_there = False
    if not is_there:
        raise UsageError(f"{_SPEC}={environ[_SPEC][:200]!r} has no pools of workers with this task: let {_NAME} set it")
    return HostPlace(_NAME, place, sum(map(len, pools.values())), leader, leader)
