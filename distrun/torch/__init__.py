"""distrun for PyTorch: `import distrun.torch as hvd`, and a Horovod script runs.

    import distrun.torch as distrun

    distrun.init()
    optimizer = distrun.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01 * distrun.size()))
    distrun.broadcast_parameters(model.state_dict(), root_rank=0)

Each rank trains on its own part of the data. After every `loss.backward()` all have the same gradients.

The collectives have Horovod's names, arguments and order of arguments, and follow the rules of
`distrun.runtime.collectives`. Tensors are on the CPU or on this rank's GPU, of any torch dtype but the 8-bit floats, of
any shape, contiguous or not (one that is not is copied). The forms ending in `_` work in place, in the memory of the
tensor if it is contiguous, and take leaf parameters too. The `_async` forms return a handle for `synchronize` and
`poll`. The synchronous forms that are not in place are differentiable: see `distrun.torch.autograd` for the gradients.

On the GPU an operation begins after the work that the submitting thread has queued on its current stream. Waiting for
it makes the current stream of the waiting thread wait, and the host continues as soon as the operation is queued, so
results can be used like results of torch's own computations. Splits and numbers of rows stay in host memory.

Differences from Horovod: bfloat16, bool, complex and unsigned tensors travel too, as do 0-dimensional and
non-contiguous ones. A handle is an object, not a number. Failures are `distrun.CollectiveError`, wrong arguments
`distrun.UsageError` (which is a ValueError).

The room: `reductions`, `sparse` and `copies` are the public functions, `autograd` makes them differentiable,
`operations` turns a `Call` and tensors into handles, and `tensors` and `cuda` handle the tensors' memory. `optimizer`
wraps an optimizer, also for hosts that exchange parameters only now and then, and `gradients` reduces the gradients of
its parameters. `state` gives all ranks the same start, and `elastic` does so again when the ranks change.
`normalization` normalises the batches of all ranks as one.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from distrun.exports import exported as _exported
from distrun.runtime.collectives.compressors import Compression as Compression
from distrun.runtime.collectives.synchronisation import *
from distrun.runtime.world.capabilities import *
from distrun.runtime.world.world import shutdown as shutdown
from distrun.shared_names import *
from distrun.torch.copies import *
from distrun.torch.normalization import SyncBatchNorm as SyncBatchNorm
from distrun.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from distrun.torch.ranks import (  # type: ignore[assignment]  # Horovod's join has a device
    distributed_sampler as distributed_sampler,
    init as init,
    join as join,
)
from distrun.torch.reductions import *
from distrun.torch.sparse import *
from distrun.torch.state import (
    broadcast_optimizer_state as broadcast_optimizer_state,
    broadcast_parameters as broadcast_parameters,
)
from distrun.torch.state.objects import *

if TYPE_CHECKING:
    from distrun.methods.servers.coordinator import Coordinator as Coordinator
    from distrun.torch import elastic as elastic
    from distrun.torch.asynchronous import AsyncOptimizer as AsyncOptimizer
    from distrun.torch.optimizer.diloco import DiLoCo as DiLoCo, LocalSGD as LocalSGD
else:  # see `distrun.exports`. To type checkers, a module with `__getattr__` has all names
    __all__ = _exported(globals())
    _LATER = {
        "AsyncOptimizer": "distrun.torch.asynchronous",
        "Coordinator": "distrun.methods.servers.coordinator",
        "DiLoCo": "distrun.torch.optimizer.diloco",
        "LocalSGD": "distrun.torch.optimizer.diloco",
    }

    def __getattr__(name: str) -> object:
        if name == "elastic":  # loaded on demand: most jobs are not elastic
            return _import_module("distrun.torch.elastic")
        if name in _LATER:  # likewise
            return getattr(_import_module(_LATER[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
