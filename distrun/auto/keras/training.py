"""`fit`, `evaluate` and `train_on_batch` of all models. In training each rank computes its part of every batch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import tree

from distrun.auto import job, output
from distrun.auto.keras import functions, metrics
from distrun.auto.keras.callbacks import OF_NUMBERS, distributed_callbacks
from distrun.auto.keras.collectives import is_alone
from distrun.auto.keras.data import BatchRecord, Cut, cut, digest_of, rows_of
from distrun.auto.keras.optimizers import distribute, optimizers_of
from distrun.auto.keras.start import Comparison, start
from distrun.auto.keras.steps import part_of
from distrun.auto.refusing import refuse
from distrun.runtime import collectives
from distrun.runtime.world import world

_CHECK_EVERY = 100  # calls of train_on_batch
_WITHOUT = ("python train.py  # or in one process",)


class Fit:
    """A running call of `fit`."""

    def __init__(self, is_scaled: bool) -> None:
        self.is_scaled = is_scaled
        self.record = BatchRecord(world.rank(), world.size())
        self.has_data = False
        """Whether the training data has been found. Data after it is for validation."""


_fits: list[Fit] = []
_evaluations = 0


def install(trainer: Any, is_scaled: bool) -> None:
    """Change the methods of a class of models that train and evaluate."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    _around_data(EpochIterator)
    functions.install(trainer)
    _around(trainer, "fit", functools.partial(_fit, is_scaled))
    _around(trainer, "evaluate", _evaluate)
    _around(trainer, "predict", _quietly)
    _around(trainer, "train_on_batch", functools.partial(_train_on_batch, is_scaled))
    _around(trainer, "_get_metrics_result_or_logs", _results)


def _around(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Replace a method of all models by a call of `instead(plain, model, arguments)`."""
    kind = next(each for each in owner.__mro__ if name in vars(each))
    plain = getattr(kind, name)
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        bound = signature.bind(self, *args, **options)
        arguments = bound.arguments
        arguments.pop("self")
        outer, job.current.is_in_keras = job.current.is_in_keras, True
        try:
            return instead(plain, self, {**arguments.pop("kwargs", {}), **arguments})
        finally:
            job.current.is_in_keras = outer

    setattr(kind, name, call)


# fit ------------------------------------------------------------------------------------------------------------------


def _fit(is_scaled: bool, plain: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
    _check(model)
    _check_layers(model)
    for optimizer in optimizers_of(model):
        distribute(optimizer)
    running = Fit(is_scaled)
    if is_scaled and arguments.get("steps_per_epoch"):
        arguments["steps_per_epoch"] = -(-arguments["steps_per_epoch"] // world.size())
    if world.rank() > 0:
        arguments["verbose"] = 0
    arguments["callbacks"] = distributed_callbacks(arguments.get("callbacks"), Comparison(model, running.record))
    _fits.append(running)
    functions.records.append(running.record)
    try:
        history = plain(model, **arguments)
    finally:
        _fits.pop()
        functions.records.pop()
    collectives.barrier(name="auto.keras.fit")  # now the files that rank 0 has written exist
    return history


def _check(model: Any) -> None:
    """Refuse to train a model whose training cannot be divided."""
    if is_alone():
        refuse(
            "a callback that is called on rank 0 alone, for it writes files (a subclass of ModelCheckpoint, CSVLogger "
            "or the like), trains a model",
            ["class Trains(keras.callbacks.Callback): ...  # it is called on all ranks"],
        )
    if getattr(model, "_distribute_strategy", None) is not None:
        refuse(
            "the model was made in the scope of a tf.distribute strategy, so the script distributes by itself",
            ["model = build_model()  # without strategy.scope()"],
        )


def _check_layers(model: Any) -> None:
    """Refuse layers that keep a state from the rows of one batch for the rows of the next."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            refuse(
                f"the layer {layer.name} is stateful: it keeps a state for each row of a batch, and the rows of a "
                "batch are divided among the ranks",
                [f"keras.layers.{type(layer).__name__}(units)  # without stateful=True", *_WITHOUT],
            )


def _around_data(iterator: Any) -> None:
    plain = iterator.__init__
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807
        running = _fits[-1] if _fits else None
        if running is None or running.has_data:
            plain(self, *args, **options)
            return
        running.has_data = True
        arguments = signature.bind(self, *args, **options).arguments
        arguments.pop("self")
        plain(self, **arguments)
        self.data_adapter = Cut(self.data_adapter, running.record, world.size() if running.is_scaled else 1)
        self._num_batches = self.data_adapter.num_batches

    iterator.__init__ = __init__


def _results(plain: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
    """Return the metrics of all ranks at the end of an epoch."""
    logs = arguments["logs"]
    if not _fits or _evaluations:
        return plain(model, logs)
    return plain(model, metrics.combined_results(model, logs, _fits[-1].record.last))


def _evaluate(plain: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
    """Evaluate all of the data on every rank, and return rank 0's results."""
    global _evaluations
    _evaluations += 1
    try:
        return metrics.agreed(_quietly(plain, model, arguments))
    finally:
        _evaluations -= 1


def _quietly(plain: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
    if world.rank() > 0:
        arguments["verbose"] = 0
    return plain(model, **arguments)


# train_on_batch -------------------------------------------------------------------------------------------------------

_calls: dict[int, tuple[Any, BatchRecord, list[int]]] = {}  # by the model's id: model, record, [calls]


def _train_on_batch(is_scaled: bool, plain: Callable[..., Any], model: Any, arguments: dict[str, Any]) -> Any:
    if is_scaled:
        refuse(
            "--auto=scale would have to read the next batches of a loop around train_on_batch",
            ["model.fit(x, y, batch_size=32)", "distrun --auto ...  # divides each batch among the ranks"],
        )
    _check(model)
    for optimizer in optimizers_of(model):
        distribute(optimizer)
    _, record, count = _calls.setdefault(id(model), (model, BatchRecord(world.rank(), world.size()), [0]))
    names = ("x", "y", "sample_weight")
    batch = tuple(arguments.get(name) for name in names)
    batch = tree.map_structure(lambda leaf: leaf if leaf is None or hasattr(leaf, "shape") else np.asarray(leaf), batch)
    part = part_of(rows_of(batch), world.rank(), world.size())
    record.begin()
    record.rows = part.total
    record.note(part, digest_of(batch))
    arguments.update(zip(names, cut(batch, part), strict=True))
    watch = Comparison(model, record)
    if not count[0]:
        _check_layers(model)
        model._symbolic_build(data_batch=tuple(arguments[name] for name in names))
        start(model)
    is_dictionary = arguments.pop("return_dict", False)
    functions.records.append(record)
    try:
        logs = plain(model, **arguments, return_dict=True)
    finally:
        functions.records.pop()
    count[0] += 1
    output.announce(watch.sizes, OF_NUMBERS)
    if count[0] == 1 or count[0] % _CHECK_EVERY == 0:
        watch.check()
    logs = metrics.combined_results(model, logs, part)
    return logs if is_dictionary else model._flatten_metrics_in_order(logs)
