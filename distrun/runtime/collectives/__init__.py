"""The collectives on arrays: what `import distrun` offers, and what the framework faces are made of.

Every rank of the process set must call the same operation with the same name; in which order each rank starts them does not
matter. Calls without a name are matched by their order, so they must be made in the same order everywhere. A name can be
under way once at a time. The forms ending in `_` work in place and return what they were given; the `_async` forms return a
`Handle` at once, and until it is done the tensor must not be changed (nor, in place, read).

Tensors are numpy arrays of any numeric or boolean dtype, of ml_dtypes.bfloat16, or anything `numpy.asarray` takes; of any
shape, contiguous or not (one that is not is copied). Or they are arrays on this rank's GPU: cupy's, and those of others that
show themselves by `__dlpack__` or `__cuda_array_interface__`. Of these the results are cupy arrays, or what was given in place;
they are waited for as `DeviceHandle` says, and must be on a GPU on all ranks or on none.

All of it raises `NotInitializedError` before `init()`, `UsageError` for arguments that cannot be, and the errors of
`Handle.wait`.
"""

from distrun.runtime.collectives.copies import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from distrun.runtime.collectives.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from distrun.runtime.collectives.synchronisation import barrier, poll, synchronize
from distrun.runtime.collectives.tensors import LARGE, empty
from distrun.runtime.operations.reduction import Average, Max, Min, Product, Sum

__all__ = [
    "LARGE", "Average", "Max", "Min", "Product", "Sum", "allgather", "allgather_async", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "empty", "grouped_allgather", "grouped_allgather_async",
    "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_",
    "grouped_reducescatter", "grouped_reducescatter_async", "poll", "reducescatter", "reducescatter_async",
    "synchronize",
]  # fmt: skip
