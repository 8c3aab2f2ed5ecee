"""Data-parallel training from one command: `distrun -np 2 python train.py`.

Importing this package loads nothing else, since it also runs before the launcher: names are fetched when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # what type checkers and editors see; at run time `__getattr__` below fetches the same names
    from distrun.errors import (
        BootstrapError,
        CollectiveError,
        DistrunError,
        JobAbortedError,
        LaunchError,
        MismatchError,
        NotInitializedError,
        StallError,
        UsageError,
    )
    from distrun.runner.function import run
    from distrun.runtime.capabilities import communication_memory
    from distrun.runtime.collectives import (
        Average,
        Max,
        Min,
        Product,
        Sum,
        allgather,
        allgather_async,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        alltoall,
        alltoall_async,
        barrier,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        empty,
        grouped_allgather,
        grouped_allgather_async,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter,
        grouped_reducescatter_async,
        poll,
        reducescatter,
        reducescatter_async,
        synchronize,
    )
    from distrun.runtime.collectives.objects import (
        allgather_object,
        broadcast_object,
    )
    from distrun.runtime.operations.handle import Handle
    from distrun.runtime.process_set import (
        ProcessSet,
        global_process_set,
    )
    from distrun.runtime.world import (
        cross_rank,
        cross_size,
        device,
        init,
        is_initialized,
        local_rank,
        local_size,
        rank,
        shutdown,
        size,
        topology,
    )

# The module that each public name lives in.
_HOMES = {
    "distrun.errors": (
        "BootstrapError CollectiveError DistrunError JobAbortedError LaunchError MismatchError "
        "NotInitializedError StallError UsageError"
    ),
    "distrun.runner.function": "run",
    "distrun.runtime.collectives": (
        "Average Max Min Product Sum allgather allgather_async allreduce allreduce_ allreduce_async "
        "allreduce_async_ alltoall alltoall_async barrier broadcast broadcast_ broadcast_async "
        "broadcast_async_ empty grouped_allgather grouped_allgather_async grouped_allreduce "
        "grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter "
        "grouped_reducescatter_async poll reducescatter reducescatter_async synchronize"
    ),
    "distrun.runtime.capabilities": "communication_memory",
    "distrun.runtime.operations.handle": "Handle",
    "distrun.runtime.collectives.objects": "allgather_object broadcast_object",
    "distrun.runtime.process_set": "ProcessSet global_process_set",
    "distrun.runtime.world": (
        "cross_rank cross_size device init is_initialized local_rank local_size rank shutdown size topology"
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Average",
    "BootstrapError",
    "CollectiveError",
    "DistrunError",
    "Handle",
    "JobAbortedError",
    "LaunchError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "ProcessSet",
    "Product",
    "StallError",
    "Sum",
    "UsageError",
    "__version__",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "communication_memory",
    "cross_rank",
    "cross_size",
    "device",
    "empty",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "run",
    "shutdown",
    "size",
    "synchronize",
    "topology",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'distrun' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
