"""Jitted steps, computed ahead, with other ranks after a while: made by one rank alone, then two, then the other alone.

HOLD names places, `generation:rank:step`, at which a rank waits until somebody opens the named pipe `go`, and it
knows of a planned change.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import distrun.jax as dt
from distrun.jax import elastic
from distrun.runtime.world import regroup, world

STEPS = 24


def tell(**facts: Any) -> None:
    print(json.dumps({"generation": world.generation(), "size": dt.size(), "rank": dt.rank(), **facts}), flush=True)


dt.init()
optimizer = dt.DistributedOptimizer(optax.sgd(1.0, momentum=0.5))
params = {"w": jnp.zeros(3) + dt.rank(), "b": jnp.zeros((), jnp.bfloat16)}
traces = {"step": [], "rows": []}


@jax.jit
def step(params: Any, moments: Any, value: Any) -> Any:
    traces["step"].append(world.generation())
    gradients = jax.grad(lambda params: jnp.sum(params["w"] * value) + params["b"].astype(jnp.float32) * value)(params)
    updates, moments = optimizer.update(gradients, moments)
    params = optax.apply_updates(params, updates)
    looped = jax.lax.fori_loop(0, 2, lambda _, x: dt.allreduce(x, dt.Sum, name="looped"), value)
    return params, moments, looped


@jax.jit
def rows(value: Any) -> Any:
    traces["rows"].append(world.generation())
    return dt.allgather(jnp.ones((1, 2)) * value, name="rows")


@elastic.run
def train(state: Any) -> None:
    while state.step < STEPS:
        if f"{world.generation()}:{dt.rank()}:{state.step}" in os.environ["HOLD"].split():
            tell(held=True)
            with open("go") as pipe:
                pipe.read()
            while regroup.planned() is None:  # what the launcher has said is read by a thread
                time.sleep(0.001)
        value = float(state.step + 1)
        # Nothing waits for what is computed: the loss of a rank comes to light when it does.
        state.params, state.moments, state.looped = step(
            state.params, state.moments, jnp.float32(value * (dt.rank() + 1))
        )
        number = dt.size()
        state.velocity = 0.5 * state.velocity + value * (number + 1) / 2
        state.expected -= state.velocity
        state.sizes = [*state.sizes, number]
        state.step += 1
        state.advance()
        if state.step % 8 == 4:
            assert rows(1.0).shape == (number, 2)


state = elastic.JaxState(
    params=params, moments=optimizer.init(params), looped=None, step=0, expected=0.0, velocity=0.0, sizes=[]
)
train(state)
np.testing.assert_allclose(np.asarray(state.params["w"]), [state.expected] * 3, rtol=1e-5)
tell(result=True, step=state.step, sizes=state.sizes, traces=traces, looped=float(state.looped))
