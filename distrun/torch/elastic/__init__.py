"""Elastic training with PyTorch: `import distrun.torch as dt`, then `@dt.elastic.run` and `dt.elastic.TorchState`.

    @dt.elastic.run
    def train(state):
        while state.step < 1000:
            images, labels = batch(state.step)
            optimizer.zero_grad()
            loss_of(model(images), labels).backward()
            optimizer.step()
            state.step += 1
            state.advance()  # the step is complete, and is not lost if a rank dies now

    train(dt.elastic.TorchState(model, optimizer, step=0))

The names are Horovod's. `ElasticSampler` divides a dataset again when ranks come or go, as `distrun.data.shard` does.

The room: `TorchState` has a handler for each model, optimizer and so on (`handlers`, `optimizers`, chosen by type in
`state`), and one for random numbers (`randomness`). The tensors of all of them travel together.
"""

from typing import TYPE_CHECKING

from distrun.data.elastic_sampler import ElasticSampler as ElasticSampler
from distrun.elastic import (
    HostsUpdatedInterrupt as HostsUpdatedInterrupt,
    ObjectState as ObjectState,
    State as State,
    run as run,
)
from distrun.exports import exported as _exported
from distrun.torch.elastic.handlers import StateHandler as StateHandler
from distrun.torch.elastic.state import (
    TorchState as TorchState,
    get_handler_registry as get_handler_registry,
    set_handler_registry as set_handler_registry,
)

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
