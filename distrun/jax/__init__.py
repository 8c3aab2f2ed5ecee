"""distrun for JAX and optax: `import distrun.jax as distrun`.

    import distrun.jax as distrun

    distrun.init()
    params, state = distrun.broadcast_parameters((params, state), root_rank=0)
    optimizer = distrun.DistributedOptimizer(optax.adam(1e-3 * distrun.size()))  # its update averages the gradients

    @jax.jit
    def step(params, state, images, labels): ...  # as before

Each rank is a process with devices of its own, and trains on its own part of the data. `jax.distributed` is not needed; to
start it with these ranks, call `initialize()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distrun.graphs.compression import Compression
from distrun.jax.collectives import allgather, allreduce, alltoall, broadcast, reducescatter
from distrun.jax.gradients import grad, value_and_grad
from distrun.jax.ranks import init, initialize, shutdown
from distrun.jax.state import broadcast_parameters
from distrun.runtime.collectives import barrier
from distrun.runtime.collectives.objects import allgather_object, broadcast_object
from distrun.runtime.operations.reduction import Average, Max, Min, Product, Sum
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.runtime.world import cross_rank, cross_size, is_initialized, local_rank, local_size, rank, size

if TYPE_CHECKING:
    from distrun.jax.optimizer import DistributedOptimizer

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grad",
    "init",
    "initialize",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
    "value_and_grad",
]


def __getattr__(name: str) -> object:
    if name != "DistributedOptimizer":
        raise AttributeError(f"module 'distrun.jax' has no attribute {name!r}")
    from distrun.jax.optimizer import DistributedOptimizer  # not before: it needs optax, and the rest does not

    globals()[name] = DistributedOptimizer
    return DistributedOptimizer
