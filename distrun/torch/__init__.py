"""distrun for PyTorch: `import distrun.torch as hvd`, and a Horovod script runs.

    import distrun.torch as distrun

    distrun.init()
    optimizer = distrun.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01 * distrun.size()))
    distrun.broadcast_parameters(model.state_dict(), root_rank=0)

Each rank trains on its own part of the data; after every `loss.backward()` all have the same gradients.

The room: `collectives` are the public functions, `autograd` makes them differentiable, `operations` turns a `Call` and
tensors into handles, and `tensors` and `cuda` know the tensors' memory. `optimizer` wraps an optimizer; its `reducer`
hears of every gradient (`parameters`, `backward`), plans buckets with the other ranks (`planning`), and sends them
(`bucket`, `dense_bucket`, `device_bucket`, `odd_buckets`). `state` and `objects` give all ranks the same start."""

from typing import TYPE_CHECKING

from distrun.exports import exported as _exported
from distrun.runtime.capabilities import *
from distrun.runtime.collectives.synchronisation import *
from distrun.runtime.shared_names import *
from distrun.runtime.world import shutdown as shutdown
from distrun.torch.collectives import *
from distrun.torch.compression import Compression as Compression
from distrun.torch.data import distributed_sampler as distributed_sampler
from distrun.torch.objects import *
from distrun.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from distrun.torch.ranks import init as init
from distrun.torch.state import (
    broadcast_optimizer_state as broadcast_optimizer_state,
    broadcast_parameters as broadcast_parameters,
)

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
