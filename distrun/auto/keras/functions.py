"""The functions that Keras makes of a model's `train_step`, changed so that they know the part of the batch they get.

A batch carries its part into traced functions: with TensorFlow in a dictionary, with JAX as static metadata of the
batch, so that each part has its own program. With torch nothing is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from distrun.auto.keras import metrics, start, steps
from distrun.auto.keras.data import DATA, PART, SEEN, BatchRecord, digest_in_graph, last_in_graph
from distrun.auto.keras.trial import StepTrial
from distrun.keras.choice import CHOSEN
from distrun.runtime.world import world

_ANYTHING = tuple(
    getattr(keras.layers, name)
    for name in ("Lambda", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "TFSMLayer")
    if hasattr(keras.layers, name)
)
"""The layers of Keras that run functions or modules of the script."""

records: list[BatchRecord] = []
"""The records of each running `fit` or `train_on_batch`. The last one belongs to the innermost call."""


@dataclass
class Marked:
    """A batch in JAX and its part."""

    data: Any
    part: steps.Part


def install(trainer: Any) -> None:
    """Change `make_train_function` of a class of models, so that it makes such functions."""
    if CHOSEN.BACKEND == "jax":
        import jax

        jax.tree_util.register_dataclass(Marked, data_fields=["data"], meta_fields=["part"])
    plain, own_loss = trainer.make_train_function, trainer.compute_loss

    @functools.wraps(plain)
    def make(self: Any, force: bool = False) -> Any:
        before = self.train_function
        trial = StepTrial(self, is_own=type(self).compute_loss is not own_loss or not _is_of_keras(self))
        step = {"tensorflow": _tensorflow_step, "jax": _jax_step, "torch": None}[CHOSEN.BACKEND]
        if step is not None:
            object.__setattr__(self, "train_step", step(self, self.train_step, trial))
        try:
            result = plain(self, force=force)
        finally:
            if step is not None:
                object.__delattr__(self, "train_step")
        if self.train_function is not before:
            function = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[CHOSEN.BACKEND]
            self.train_function = function(self, self.train_function, trial)
        return result

    trainer.make_train_function = make


def _is_of_keras(model: Any) -> bool:
    """Whether all layers of a model are Keras's own. These are known not to mix rows."""
    for layer in model._flatten_layers():
        if not steps.are_of_keras(type(layer), getattr(layer, "activation", None)):
            return False
        if isinstance(layer, _ANYTHING) or not all(
            isinstance(each, keras.layers.Layer) for each in getattr(layer, "operations", ())
        ):
            return False
    return True


# JAX ------------------------------------------------------------------------------------------------------------------


def _jax(model: Any, plain: Callable[..., Any], trial: StepTrial) -> Callable[..., Any]:
    batch: Any = None

    def marked(batches: Iterator[Any]) -> Iterator[Marked]:
        nonlocal batch
        for batch in batches:
            yield Marked(batch, records[-1].take())

    @functools.wraps(plain)
    def train(state: Any, iterator: Any) -> Any:
        result = plain(state, marked(iterator))
        trial.run_jax(result[1], batch)
        return result

    return train


def _jax_step(model: Any, plain: Callable[..., Any], trial: StepTrial) -> Callable[..., Any]:
    trial.step = plain

    def train_step(state: Any, marked: Marked) -> Any:
        with steps.step(marked.part, world.size()) as step:
            logs, new = plain(state, marked.data)
        trial.note(step)
        if not steps.counts(marked.part, world.rank(), world.size()):
            new = (*new[:3], state[3])  # the metrics as they were
        return logs, new

    return train_step


# torch ----------------------------------------------------------------------------------------------------------------


def _torch(model: Any, plain: Callable[..., Any], trial: StepTrial) -> Callable[..., Any]:
    import torch

    state: Any = None

    @functools.wraps(plain)
    def train(data: Any) -> Any:
        nonlocal state
        part = records[-1].take()
        kept = None
        if not steps.counts(part, world.rank(), world.size()):
            kept = [(variable, variable.value.clone()) for variable in metrics.variables_of(model)]
        # The step uses this rank's own stream of random numbers. The common stream, which shuffles data, stays in step.
        outer = torch.get_rng_state()
        if state is None:
            torch.manual_seed(torch.initial_seed() + world.rank())
        else:
            torch.set_rng_state(state)
        try:
            with steps.step(part, world.size()) as step:
                logs = plain(data)
            state = torch.get_rng_state()
            trial.note(step)
            trial.run_torch(plain, data)
        finally:
            torch.set_rng_state(outer)
        for variable, value in kept or ():
            variable.assign(value)
        return logs

    return train


# TensorFlow -----------------------------------------------------------------------------------------------------------


def _tensorflow(model: Any, plain: Callable[..., Any], trial: StepTrial) -> Callable[..., Any]:
    import tensorflow as tf

    @functools.wraps(plain)
    def train(iterator: Any) -> Any:
        result = plain(iterator if isinstance(iterator, tf.data.Iterator) else _as_cut_batches(iterator))
        trial.end_tensorflow()
        return result

    return train


def _as_cut_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of `train_on_batch` in the form that a cut dataset yields."""
    import tensorflow as tf

    for batch in batches:
        part = records[-1].take()
        yield {DATA: batch, PART: tuple(map(tf.constant, part)), SEEN: tf.constant(0, tf.int64)}


def _tensorflow_step(model: Any, plain: Callable[..., Any], trial: StepTrial) -> Callable[..., Any]:
    import tensorflow as tf

    @tf.autograph.experimental.do_not_convert
    def train_step(given: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if not tf.executing_eagerly() and graph.seed is not None:
            graph.seed += world.rank()  # so that random operations of the step differ between ranks
        part = steps.Part(*given[PART])
        digest = digest_in_graph()
        digest.assign(digest * 31 + given[SEEN])
        last_in_graph().assign(tf.stack([tf.cast(each, tf.int64) for each in part]))
        if world.rank() > 0:
            is_counted = steps.counts(part, world.rank(), world.size())
            kept = [(variable, tf.identity(variable.value)) for variable in metrics.variables_of(model)]
        with steps.step(part, world.size()) as step, start.noting_assignments(model):
            logs = plain(given[DATA])
        if world.rank() > 0:
            _keep(model, kept, is_counted)
        trial.note(step)
        trial.add_tensorflow(plain, given[DATA])
        return logs

    return train_step


def _keep(model: Any, kept: list[tuple[Any, Any]], is_counted: Any) -> None:
    """Restore the metrics to the values in `kept`, if the step's part does not count."""
    import tensorflow as tf

    known = {id(variable): value for variable, value in kept}
    for variable in metrics.variables_of(model):
        before = known.get(id(variable))
        if before is None:  # created in this step, which is the first one
            before = tf.zeros_like(variable.value)
        variable.assign(tf.where(is_counted, variable.value, before))
