"""The callbacks of `fit`: those that write run on rank 0 alone, and all ranks decide alike whether to stop."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from distrun.auto import output
from distrun.auto.keras import metrics
from distrun.auto.keras.collectives import on_one_rank
from distrun.auto.keras.start import Comparison, average_accumulators, end, start
from distrun.runtime import collectives
from distrun.runtime.operations.reduction import Max, Min
from distrun.runtime.world import world

_CHECK_EVERY = 100  # steps
OF_NUMBERS = (
    "Losses and metrics at the end of an epoch are of all its samples; until then a progress bar shows those of rank "
    "0's part."
)
"""A sentence about the numbers that are printed."""

_WRITING = tuple(
    getattr(keras.callbacks, name)
    for name in (
        *("ModelCheckpoint", "BackupAndRestore", "CSVLogger", "TensorBoard"),
        *("RemoteMonitor", "ProgbarLogger", "OrbaxCheckpoint"),
    )
    if hasattr(keras.callbacks, name)
)
_OF_KERAS = tuple(kind for kind in vars(keras.callbacks).values() if isinstance(kind, type))


class _Silent(keras.callbacks.ProgbarLogger):
    """A progress bar that shows nothing. While it is among the callbacks, Keras does not add one."""


class _Alone(keras.callbacks.Callback):
    """A wrapper of a callback that runs on rank 0 alone, so that nothing in it starts a collective."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self._inner = inner

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._inner.set_params(params)

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._inner.set_model(model)


def _passed_on(name: str) -> Any:
    def call(self: Any, *args: Any, **options: Any) -> None:
        with on_one_rank():
            getattr(self._inner, name)(*args, **options)

    return call


for _name in dir(keras.callbacks.Callback):
    if _name.startswith("on_"):
        setattr(_Alone, _name, _passed_on(_name))
        setattr(_Silent, _name, getattr(keras.callbacks.Callback, _name))
for _name in ("set_params", "set_model"):
    setattr(_Silent, _name, getattr(keras.callbacks.Callback, _name))


class _First(keras.callbacks.Callback):
    """The callback before all others: before they use logs and accumulators, it averages these over the ranks."""

    def __init__(self, watch: Comparison, decides_in_steps: bool) -> None:
        super().__init__()
        self._watch = watch
        self._decides_in_steps = decides_in_steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._decides_in_steps and logs:
            logs.update(metrics.combined_logs(logs, self._watch.last))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        average_accumulators(self.model)


class _Start(keras.callbacks.Callback):
    """The callback after all others: it gives all ranks the same start, which another one may have restored on rank 0.

    It also compares the ranks every 100 steps and at the end of an epoch, and makes them stop together.
    """

    def __init__(self, watch: Comparison, decides_in_steps: bool) -> None:
        super().__init__()
        self._watch = watch
        self._decides_in_steps = decides_in_steps
        self._has_begun = False
        self._steps = 0
        self._next = 1

    def on_train_begin(self, logs: Any = None) -> None:
        epoch = np.array([self.model._initial_epoch or 0])
        self.model._initial_epoch = int(collectives.broadcast(epoch, 0, "auto.keras.epoch")[0]) or None
        self._has_begun = bool(
            collectives.allreduce(np.array([self.model.built], np.uint8), "auto.keras.built", Min)[0]
        )
        if self._has_begun:
            start(self.model)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._steps >= self._next:
            self._check()
            self._next += _CHECK_EVERY
        self._steps += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        output.announce(self._watch.sizes, OF_NUMBERS)
        if self._decides_in_steps:
            self._agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._check()
        self._agree()

    def on_train_end(self, logs: Any = None) -> None:
        end(self.model)

    def _check(self) -> None:
        self._watch.check()
        if not self._has_begun:  # the first step has created the weights
            self._has_begun = True
            start(self.model)

    def _agree(self) -> None:
        wish = np.array([bool(self.model.stop_training)], np.uint8)
        self.model.stop_training = bool(collectives.allreduce(wish, "auto.keras.stop", Max)[0])


def distributed_callbacks(given: Any, watch: Comparison) -> Any:
    """Return the callbacks for this rank, in the form in which they were given to `fit`."""
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks[:] = _of_all(given.callbacks, watch)
        for made in (given.callbacks[0], given.callbacks[-1]):
            if given._model is not None:
                made.set_model(given._model)
        return given
    return _of_all(list(tree_flatten(given)), watch)


def tree_flatten(given: Any) -> list[Any]:
    """Return a list of callbacks, given as None, a single callback, or a nest of them."""
    return keras.tree.flatten(given) if given else []


def _of_this_rank(callback: Any) -> Any:
    if not isinstance(callback, _WRITING):
        return callback
    if world.rank() == 0:
        return _Alone(callback)
    return _Silent() if isinstance(callback, keras.callbacks.ProgbarLogger) else keras.callbacks.Callback()


def _of_all(callbacks: list[Any], watch: Comparison) -> list[Any]:
    decides = any(map(_decides_in_steps, callbacks))
    return [_First(watch, decides), *map(_of_this_rank, callbacks), _Start(watch, decides)]


def _decides_in_steps(callback: Any) -> bool:
    """Whether a callback may end the training after a batch, by numbers that differ between the ranks."""
    if type(callback) in _OF_KERAS:
        return isinstance(callback, (keras.callbacks.TerminateOnNaN, keras.callbacks.LambdaCallback))
    base = keras.callbacks.Callback
    return any(
        getattr(type(callback), name) is not getattr(base, name) for name in ("on_train_batch_end", "on_batch_end")
    )
