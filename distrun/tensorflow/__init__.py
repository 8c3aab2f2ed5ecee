"""distrun for TensorFlow: `import distrun.tensorflow as hvd`, and a Horovod script runs.

    import distrun.tensorflow as distrun

    distrun.init()
    with tf.GradientTape() as tape:
        ...
    tape = distrun.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    distrun.broadcast_variables(model.variables, root_rank=0)  # before the first step

Each rank trains on its own part of the data; all have the same gradients. For `model.fit` see `distrun.keras`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distrun.graphs.compression import Compression
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
from distrun.tensorflow.collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from distrun.tensorflow.optimizer import DistributedOptimizer
from distrun.tensorflow.ranks import init, local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from distrun.tensorflow.state import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from distrun.tensorflow.tape import DistributedGradientTape

if TYPE_CHECKING:
    from distrun.tensorflow.normalization import SyncBatchNormalization

__all__ = [
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
]


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # not at the top: it loads Keras
        from distrun.tensorflow.normalization import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
