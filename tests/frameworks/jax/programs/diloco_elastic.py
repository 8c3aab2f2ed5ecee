"""DiLoCo with optax on hosts that come and go; tells of each step in a line of JSON.

HOLD names places, `generation:rank:steps`, at which a rank that has made so many steps in a generation waits for its
end: nobody can then be done before.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import distrun.jax as dt
from distrun.jax import elastic
from distrun.runtime.world import world

STEPS = 60


def tell(**facts: Any) -> None:
    print(json.dumps({"generation": world.generation(), "size": dt.size(), "rank": dt.rank(), **facts}), flush=True)


def digest(tree: Any) -> str:
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(tree))).hexdigest()


dt.init()
params = {"w": jnp.zeros((70, 70)), "b": jnp.zeros(70)}
optimizer = dt.DiLoCo(optax.sgd(0.1, momentum=0.5), params, every=6, momentum=0.5, wire="int8", fragments=2)


@jax.jit
def inner(params: Any, moments: Any, inputs: Any) -> Any:
    gradients = jax.grad(lambda params: jnp.square(inputs @ params["w"] + params["b"] - inputs).mean())(params)
    updates, moments = optimizer.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments


@elastic.run
def train(state: Any) -> None:
    state.params = optimizer.merge(state.params)
    outer = optimizer.state_dict()
    tell(entered=digest([state.params, outer["anchors"], outer["velocities"]]), at=outer["step"])
    made = 0
    while state.step < STEPS:
        inputs = jax.random.normal(jax.random.key(1000 * state.step + dt.rank()), (4, 70))
        state.params, state.moments = inner(state.params, state.moments, inputs)
        state.params = optimizer.step(state.params)
        state.step += 1
        tell(step=state.step)
        state.advance()
        made += 1
        while f"{world.generation()}:{dt.rank()}:{made}" in os.environ["HOLD"].split():
            signal.pause()
        time.sleep(0.005)
    state.params = optimizer.merge(state.params)


state = elastic.JaxState(params=params, moments=optimizer.init(params), outer=optimizer, step=0)
train(state)
tell(done=digest(state.params))
