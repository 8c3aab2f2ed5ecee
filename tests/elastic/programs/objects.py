"""Train without a framework: one weight, one batch per step and rank; tells of each step in a line of JSON."""

from __future__ import annotations

import signal
import sys
import time

import numpy as np
from telling import is_over, tell

import distrun
from distrun import elastic
from distrun.runtime.world import world

STEPS = int(sys.argv[1])


@elastic.run
def train(state: elastic.ObjectState) -> float:
    """Take the steps that are left."""
    while not is_over(state.step, STEPS):
        gradient = distrun.allreduce(np.array([float(state.step)]), name="gradient")
        state.weight = state.weight - 0.1 * gradient
        state.step += 1
        tell(step=state.step, rank=distrun.rank(), size=distrun.size())
        state.advance()
        time.sleep(0.005)  # as if it computed: the test must be able to interrupt
    if sys.argv[2:] == ["late"] and distrun.rank() == 1 and world.generation() == 1:
        tell(is_late=True)
        signal.pause()  # until it is killed
    return float(state.weight[0])


distrun.init()
state = elastic.ObjectState(weight=np.zeros(1), step=0)
state.register_reset_callbacks([lambda: tell(reset=distrun.size())])
tell(result=train(state), steps=state.step)
