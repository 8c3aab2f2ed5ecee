"""Horovod's documentation of elastic training with TensorFlow 1, but for the model, which has two parts that take
turns, and the deaths of ranks.

DIE names places, `generation:rank:batch:part`, where a rank kills itself before its part of a step.
"""

import json
import os
import signal

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
base_lr, batches, batches_per_commit, committed_batches = 0.5, 14, 4, 8

hvd.init()


def place():
    return {"generation": int(os.environ["DISTRUN_GENERATION"]), "rank": hvd.rank(), "size": hvd.size()}


def tell(**facts):
    print(json.dumps({**place(), **facts}), flush=True)


def part(number, variable, optimizer):
    """Return a training operation whose gradient is the value that is fed."""
    minimize = hvd.DistributedOptimizer(optimizer).minimize(tf.reduce_sum(variable * value), var_list=[variable])

    def train(state, number_of_batch):
        here = place()
        if f"{here['generation']}:{here['rank']}:{number_of_batch}:{number}" in os.environ["DIE"].split():
            os.kill(os.getpid(), signal.SIGKILL)
        session.run(minimize, {value: (number_of_batch + 1.0) * (hvd.rank() + 1)})

    return train


lr = tf.Variable(base_lr * hvd.size())
value = tf.placeholder(tf.float32, [])
plain = tf.get_variable("plain", [3], initializer=tf.random_normal_initializer(), use_resource=False)
heavy = tf.get_variable("heavy", [2, 2], initializer=tf.zeros_initializer(), use_resource=True)
parts = [part(0, plain, tf.train.GradientDescentOptimizer(lr)), part(1, heavy, tf.train.MomentumOptimizer(lr, 0.5))]


@hvd.elastic.run
def train(state):
    if state.drawn is None:  # all have what one rank drew
        state.drawn = session.run(plain).tolist()
    while state.batch < batches:
        for train_part in parts:
            train_part(state, state.batch)
        mean = (state.batch + 1.0) * (hvd.size() + 1) / 2
        rate = float(session.run(lr))
        assert rate == base_lr * hvd.size()
        state.velocity = 0.5 * state.velocity + mean
        state.plain -= rate * mean
        state.heavy -= rate * state.velocity
        tell(batch=state.batch)
        state.batch += 1
        if state.batch > committed_batches:
            state.check_host_updates()
        elif state.batch % batches_per_commit == 0:
            state.commit()


with tf.Session() as session:
    session.run(tf.global_variables_initializer())

    def on_state_reset():
        lr.load(base_lr * hvd.size(), session)

    state = hvd.elastic.TensorFlowState(session=session, batch=0, drawn=None, plain=0.0, heavy=0.0, velocity=0.0)
    state.register_reset_callbacks([on_state_reset])
    train(state)

    np.testing.assert_allclose(session.run(plain), np.add(state.drawn, state.plain), rtol=1e-5)
    np.testing.assert_allclose(session.run(heavy), np.full((2, 2), state.heavy), rtol=1e-5)
    bits = [array.tobytes().hex() for array in session.run(tf.global_variables())]
    tell(result=True, agree=hvd.allgather_object(bits) == [bits] * hvd.size())
