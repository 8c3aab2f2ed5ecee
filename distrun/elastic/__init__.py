"""Elastic training: a training function that goes on when ranks come or go.

    @elastic.run
    def train(state):
        while state.step < 1000:
            ...
            optimizer.step()
            state.step += 1
            state.advance()

    train(TorchState(model, optimizer, step=0))

The names are Horovod's. What is said here once, each framework's face says with its own states.

The room: `loop` has `run`, which calls the function again and again; `state` is what every state can do, `objects` the
state of plain objects, and the one that the frameworks' states extend by a `part` for each thing that has tensors.
`donor` decides whose state the ranks take. The runtime has `world.regroup` for it.
"""

from typing import TYPE_CHECKING

from distrun.elastic.interrupt import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from distrun.elastic.loop import run as run
from distrun.elastic.objects import ObjectState as ObjectState
from distrun.elastic.state import State as State
from distrun.exports import exported as _exported

if not TYPE_CHECKING:  # see `distrun.exports`
    __all__ = _exported(globals())
