"""A loop around a tf.function, which is traced by one rank alone and goes on with two, and with another one alone.

HOLD names places, `generation:rank:step`, at which a rank waits until somebody opens the named pipe `go`, and it
knows of a planned change.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

import distrun.tensorflow as dt
from distrun.runtime.world import regroup, world
from distrun.tensorflow import elastic

STEPS = 24


def tell(**facts: Any) -> None:
    print(json.dumps({"generation": world.generation(), "size": dt.size(), "rank": dt.rank(), **facts}), flush=True)


dt.init()
weights = tf.Variable([0.0, 0.0])
mine = tf.Variable([0.0])  # a local variable
table = tf.Variable(tf.zeros([4, 1]))  # whose gradients are slices
count = tf.Variable(0, dtype=tf.int64)
traces: list[int] = []


@tf.function(autograph=False)
def step(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    traces.append(world.generation())
    with tf.GradientTape() as plain, tf.GradientTape() as other:
        rows = tf.gather(table, [0, 0])
        loss = tf.reduce_sum(weights * value) + tf.reduce_sum(mine * value) + tf.reduce_sum(rows * value)
        gathered = tf.reduce_sum(dt.allgather(tf.reshape(weights * 0.0 + value, [1, 2]), name="rows") ** 2)
        moved = dt.broadcast(weights * 1.0, 0, name="moved")
    tape = dt.DistributedGradientTape(plain)
    tape.register_local_source(mine)
    gradients = tape.gradient(loss, [weights, mine, table])
    count.assign_add(1)  # nothing here makes it wait for the gradients
    weights.assign_sub(gradients[0])
    mine.assign(gradients[1])
    table.scatter_nd_sub(tf.reshape(gradients[2].indices, [-1, 1]), gradients[2].values)
    back = other.gradient(moved, weights)
    return dt.size_op(), dt.rank_op(), gathered, back[0]


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
        size, rank, gathered, back = step(tf.constant(value * (dt.rank() + 1)))
        number = dt.size()
        assert (int(size), int(rank)) == (number, dt.rank())
        assert float(gathered) == sum(2 * (value * (each + 1)) ** 2 for each in range(number)), float(gathered)
        assert float(back) == (1.0 if dt.rank() == 0 else 0.0)
        mean = value * (number + 1) / 2
        assert np.isclose(mine.numpy()[0], value * (dt.rank() + 1) / number), mine.numpy()
        state.expected -= mean
        np.testing.assert_allclose(weights.numpy(), [state.expected] * 2, rtol=1e-5)
        np.testing.assert_allclose(table.numpy()[0], [2 * state.expected], rtol=1e-5)
        state.step += 1
        tell(step=state.step)
        state.advance()


state = elastic.TensorFlowState([weights, table, count], step=0, expected=0.0)
train(state)
tell(result=True, count=int(count), traces=traces, weights=weights.numpy().tolist())
