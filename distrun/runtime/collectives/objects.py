"""Collectives on Python objects, which travel pickled: convenient for configuration and metrics, not for tensors.

Pickles come only from ranks of the same job, which were authenticated at the rendezvous.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.runtime import collectives
from distrun.runtime.process_sets.process_set import ProcessSet, global_process_set
from distrun.runtime.world import world

__all__ = ["allgather_object", "broadcast_object"]


def _pickle(obj: Any) -> NDArray[np.uint8]:
    import cloudpickle  # not at the top: most scripts send no objects

    return np.frombuffer(cloudpickle.dumps(obj), np.uint8)


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Copy the root's object to all ranks.

    Args:
        obj: on the root, anything that cloudpickle can pickle. On other ranks it is ignored, and may be None.
        root_rank: the rank to copy from, counted in the world even if `process_set` is smaller.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        The unpickled copy, or on the root `obj` itself.

    Raises:
        UsageError: `root_rank` is not a rank of the process set.
        CollectiveError: as `allreduce` raises.
    """
    is_root = world.rank() == root_rank
    payload = _pickle(obj) if is_root else None
    length = np.array(0 if payload is None else payload.size, np.int64)
    length = collectives.broadcast(length, root_rank, name and f"{name}.length", process_set)
    if payload is None:
        payload = np.empty(int(length), np.uint8)
    received = collectives.broadcast(payload, root_rank, name and f"{name}.bytes", process_set)
    return obj if is_root else pickle.loads(received.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Collect the ranks' objects.

    Args:
        obj: anything that cloudpickle can pickle. The ranks' objects may differ in type and size.
        name: how the ranks match the operation. Unnamed calls are matched by their order.
        process_set: the ranks that take part.

    Returns:
        Copies of all ranks' objects, in rank order.

    Raises:
        CollectiveError: as `allreduce` raises.
    """
    payload = _pickle(obj)
    lengths = collectives.allgather(np.array([payload.size], np.int64), name and f"{name}.lengths", process_set)
    received = collectives.allgather(payload, name and f"{name}.bytes", process_set)
    stops = np.cumsum(lengths)
    return [pickle.loads(received[stop - length : stop].tobytes()) for length, stop in zip(lengths, stops, strict=True)]
