"""The collectives on arrays: what `import distrun` offers, and what the framework faces are made of.

Every rank of the process set must call the same operation with the same name; in which order each rank starts them does
not matter. Calls without a name are matched by their order, so they must be made in the same order everywhere. A name
can be in flight once at a time. The forms ending in `_` work in place and return what they were given; the `_async`
forms return a `Handle` at once, and until it is done the tensor must not be changed (nor, in place, read).

Tensors are numpy arrays of any numeric or boolean dtype, of ml_dtypes.bfloat16, or anything `numpy.asarray` takes; of
any shape, contiguous or not (one that is not is copied). Or they are arrays on this rank's GPU: cupy's, and those of
others that offer `__dlpack__` or `__cuda_array_interface__`. Their results are cupy arrays or, in place, what was
given. Such arrays are waited for as `DeviceHandle` says, and must be on a GPU on all ranks or on none.

All of it raises `NotInitializedError` before `init()`, `UsageError` for impossible arguments, and the errors of
`Handle.wait`.

A function of `reductions`, `copies` or `synchronisation` makes a `Call` of its arguments (`call`), and of the tensors
flat storage (`tensors` for numpy, `on_gpu` for cupy). `Call.request` checks both and gives the `Request`; with it comes
a `Handle`, which is handed down to the engine. The framework faces and `distrun.graphs` begin at `Call`. `objects`
sends pickles as arrays, `consistency` compares lists among the ranks, and `gradient_settings` checks how a face is told
to reduce gradients.
"""

from distrun.runtime.collectives.copies import *
from distrun.runtime.collectives.reductions import *
from distrun.runtime.collectives.synchronisation import *
from distrun.runtime.collectives.tensors import empty as empty
from distrun.runtime.operations.reduction import (
    Average as Average,
    Max as Max,
    Min as Min,
    Product as Product,
    Sum as Sum,
)
