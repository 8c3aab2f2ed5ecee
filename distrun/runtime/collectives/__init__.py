"""The collectives on arrays: what `import distrun` offers, and what the framework faces are made of.

Every rank of the process set must call the same operations with the same names, in any order. Calls without a name are
matched by their order, so they must be made in the same order on all ranks. A name can be used again once its operation
is done. The forms ending in `_` work in place and return the tensors given. The `_async` forms return a `Handle` at
once, and until it is done the tensor must not be changed (nor, in place, read).

Tensors are numpy arrays of any numeric or boolean dtype or of ml_dtypes.bfloat16, or anything that `numpy.asarray`
takes. They have any shape, and are contiguous or not (one that is not is copied). Or they are arrays on this rank's
GPU: cupy's, and other libraries' arrays with `__dlpack__` or `__cuda_array_interface__`. Their results are cupy arrays
or, in place, the arrays given. How to wait for such arrays: see `DeviceHandle`. They must be on a GPU on all ranks or
on none.

All functions raise `NotInitializedError` before `init()`, `UsageError` for impossible arguments, and the errors of
`Handle.wait`.

A function of `reductions`, `copies` or `synchronisation` turns its arguments into a `Call` (`call`), and the tensors
into flat storage (`tensors` for numpy, `on_gpu` for cupy). `Call.request` checks both and returns the `Request`. A
`Handle` with this request goes down to the engine. The framework faces and `distrun.graphs` begin at `Call`. `objects`
sends pickles as arrays, `consistency` compares lists among the ranks, and `gradient_settings` checks the settings by
which a face reduces gradients.
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
