"""distrun for Keras 3, on TensorFlow, JAX or torch: `import distrun.keras as hvd`, and a Horovod script runs.

    import distrun.keras as distrun

    distrun.init()
    optimizer = distrun.DistributedOptimizer(keras.optimizers.SGD(0.01 * distrun.size()))
    model.compile(optimizer, loss)
    model.fit(..., callbacks=[distrun.callbacks.BroadcastGlobalVariablesCallback(0)])

Each rank trains on its own part of the data, in as many steps as the others.
"""

from __future__ import annotations

from distrun.graphs.compression import Compression
from distrun.keras import callbacks, fitting
from distrun.keras.optimizer import DistributedOptimizer
from distrun.keras.ranks import init
from distrun.keras.saving import load_model
from distrun.keras.values import allgather, allreduce, broadcast, reducescatter
from distrun.keras.variables import broadcast_global_variables, broadcast_variables
from distrun.runtime.capabilities import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from distrun.runtime.collectives import barrier
from distrun.runtime.collectives.objects import allgather_object, broadcast_object
from distrun.runtime.operations.reduction import Average, Max, Min, Product, Sum
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.runtime.world import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

fitting.take_part()

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
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
]
