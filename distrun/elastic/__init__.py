"""Elastic training: a training function that continues when ranks come or go.

    @elastic.run
    def train(state):
        while state.step < 1000:
            ...
            optimizer.step()
            state.step += 1
            state.advance()

    train(TorchState(model, optimizer, step=0))

The names are Horovod's. Each framework's face has states of its own, such as `distrun.torch.elastic.TorchState`.

The room: `loop` has `run`, which calls the function once in each generation. `state` is the base of all states.
`objects` has the state of plain objects, which is also the base of the frameworks' states. It is made of parts
(`part`): `stateful` is the one for objects with a state_dict, `graphs` has those for TensorFlow, Keras and JAX, and
`torch/elastic` has those for PyTorch. `donor` chooses the rank whose state all ranks take. The runtime's side is
`world.regroup`.
"""

from typing import TYPE_CHECKING

from distrun.elastic.interrupt import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from distrun.elastic.loop import run as run
from distrun.elastic.objects import ObjectState as ObjectState
from distrun.elastic.state import State as State
from distrun.exports import exported as _exported

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
