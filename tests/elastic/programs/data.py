"""Elastic training on some kind of data, without a framework; tells what benchmarks/chaos/checks.py examines."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time

import numpy as np
from telling import is_there

import distrun
import distrun.data
from distrun import elastic
from distrun.runtime.world import world

KIND, SAMPLES, BATCH = sys.argv[1], *map(int, sys.argv[2:4])


def tell(what: str, **facts: object) -> None:
    """Write a line at once: a rank that is killed leaves whole lines."""
    place = {"generation": world.generation(), "rank": distrun.rank(), "size": distrun.size()}
    os.write(1, (json.dumps({"what": what, **place, **facts}) + "\n").encode())


def made(kind: str) -> object:
    """Return this rank's batches of the numbers up to SAMPLES."""
    numbers: object = np.arange(SAMPLES)
    how = {"shuffle": True, "pad": False}
    if kind == "tf":
        import tensorflow as tf

        numbers = tf.data.Dataset.range(SAMPLES)
    elif kind == "keras":
        import keras  # makes the batches a PyDataset

        assert keras.utils.PyDataset
    elif kind == "stream":
        numbers, how = dict.fromkeys(range(SAMPLES)).keys(), {"shuffle": 20}
    return distrun.data.shard(numbers, BATCH, seed=4, **how)


@elastic.run
def train(state: elastic.ObjectState) -> None:
    """Add up all numbers, each times the place of its step."""
    tell("start", step=state.step, weights=state.weight.tobytes().hex())
    for state.epoch in itertools.count(state.epoch):  # noqa: B020  # the iterator is made once
        if is_there("end"):
            return
        state.batches.set_epoch(state.epoch)
        for batch in state.batches:
            samples = [int(sample) for sample in np.asarray(batch)]
            tell("step", step=state.step, epoch=state.epoch, samples=samples, loss=float(sum(samples)))
            gradient = distrun.allreduce(np.array([float(sum(samples))]), name="gradient", op=distrun.Sum)
            state.weight = state.weight + gradient * (state.step + 1)
            state.step += 1
            state.advance()
            time.sleep(0.02)  # as if it computed: the test must be able to interrupt


distrun.init()
state = elastic.ObjectState(batches=made(KIND), weight=np.zeros(1), step=0, epoch=0)
train(state)
tell("end", step=state.step, epochs=state.epoch, weights=state.weight.tobytes().hex())
