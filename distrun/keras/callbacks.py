"""Callbacks for `fit`, with Horovod's names and arguments.

Their order in the list matters: `BroadcastGlobalVariablesCallback` first, `MetricAverageCallback` before whatever looks
at metrics (EarlyStopping, ReduceLROnPlateau, checkpoints), and every rank must have the same ones, but for
`OnRankZero`.

None of them acts at the end of a batch, where Keras would have to wait for each step's result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distrun.errors import UsageError
from distrun.graphs.local_variables import LocalVariables, without
from distrun.keras import gradients
from distrun.keras.choice import CHOSEN
from distrun.keras.gradients import Distributed, outer_steps_of
from distrun.keras.library import attach, state_of
from distrun.keras.values import array_of
from distrun.keras.variables import broadcast_variables
from distrun.runtime import collectives, regroup, world
from distrun.runtime.collectives import consistency
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.runtime.trial import report

_SIZE = "_distrun_rate_for"
"""The attribute of an optimizer that holds the number of ranks that its learning rate is meant for."""

Callback: Any = CHOSEN.PACKAGE.callbacks.Callback
"""The base class of callbacks, of the Keras that `tf.keras` is."""

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "OnRankZero",
    "ReportCallback",
]

Logs = dict[str, Any] | None


def _name_between_steps(optimizer: Any) -> str:
    """Return the name for operations between steps: the steps' own, so that a rank which skips them clashes with the
    rest."""
    if outer_steps_of(optimizer) is not None:  # hosts are at different steps, and one with a single rank names none
        return "keras.callback"
    return gradients.name_of_step(optimizer) or "keras.callback"


def _ranks_of(optimizer: Any, given: ProcessSet | None) -> ProcessSet:
    """Return the ranks that a callback concerns: those it was given or, if None, those that train together, now and
    then or always."""
    if given is None and isinstance(optimizer, Distributed) and outer_steps_of(optimizer) is None:
        return optimizer.distrun_settings.process_set
    return given or global_process_set


class BroadcastGlobalVariablesCallback(Callback):
    """All ranks start with the weights and the optimizer's state of one: a fresh start, or what it has loaded.

    That happens before the first step or, if some rank's model is not built by then (on TensorFlow a model without
    input shape is not), after it. States of random generators stay each rank's own, and so do local variables: those
    given here, and those that the optimizer knows.
    """

    _supports_tf_logs = True  # in Keras 2: nobody waits for the logs of a step for our sake

    def __init__(
        self,
        root_rank: int = 0,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
        process_set: ProcessSet | None = None,
    ) -> None:
        """Arguments:

        root_rank: the rank, in the world, that the others start from.
        device: accepted for Horovod's sake.
        local_variables: variables that each rank has for itself; they and their slots in the optimizer stay.
        process_set: the ranks that start from the same state; None: those of the `DistributedOptimizer`.
        """
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self._local = LocalVariables()
        for variable in local_variables or ():
            self._local.add(variable)
        self._is_due = True
        self._has_stepped = False

    def register_local_var(self, var: Any) -> None:
        """Leave a variable to each rank."""
        self._local.add(var)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcast, if all ranks can."""
        optimizer = self.model.optimizer
        ranks = _ranks_of(optimizer, self.process_set)
        self._is_due, self._has_stepped = ranks.included(), False
        if self._is_due and gradients.all_built(self.model, CHOSEN, _name_between_steps(optimizer), ranks):
            self._broadcast()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Broadcast after the first step, if it could not be done before: what is not built now never will be."""
        if self._is_due and self._has_stepped:
            self._broadcast()
        self._has_stepped = True

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Broadcast after an epoch of a single step, if it could not be done before."""
        if self._is_due:
            self._broadcast()

    def _broadcast(self) -> None:
        model, optimizer = self.model, self.model.optimizer
        CHOSEN.build(optimizer, model.trainable_variables)
        local = self._local.all()
        if isinstance(optimizer, Distributed):
            local += gradients.local_variables(optimizer).all()
        shared = without(model.weights + state_of(optimizer), local + CHOSEN.slots(optimizer, local))
        broadcast_variables(shared, self.root_rank, _ranks_of(optimizer, self.process_set))
        self._is_due = False


class MetricAverageCallback(Callback):
    """Averages the metrics of an epoch, those of validation included, over the ranks, for the callbacks after this one.

    Raises:
        MismatchError: the ranks do not have the same metrics.
    """

    def __init__(self, device: str = "", process_set: ProcessSet | None = None) -> None:
        """`device` is accepted for Horovod's sake; `process_set` are the ranks, None: those of the
        `DistributedOptimizer`."""
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Replace the values in `logs`."""
        optimizer = self.model.optimizer
        ranks = _ranks_of(optimizer, self.process_set)
        if logs and ranks.included() and ranks.size() > 1:
            values = {name: np.asarray(array_of(value), np.float64) for name, value in logs.items()}
            logs.update(_averages(values, _name_between_steps(optimizer), ranks))


def _averages(values: dict[str, Any], operation: str, ranks: ProcessSet) -> dict[str, Any]:
    names = sorted(values)
    notes = consistency.compare(
        [name + (f" {list(values[name].shape)}" if values[name].ndim else "") for name in names],
        "the metrics to average",
        operation,
        np.concatenate([values[name].reshape(-1) for name in names]).tobytes(),
        ranks,
    )
    average = np.mean([np.frombuffer(note) for note in notes], axis=0)
    averages = {}
    for name in names:
        part, average = np.split(average, [values[name].size])
        averages[name] = part.reshape(values[name].shape) if values[name].ndim else float(part[0])
    return averages


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)`, in epochs from `start_epoch` on and before
    `end_epoch`.

    In an elastic job rates are in proportion to the number of ranks: when that changes, so does `initial_lr`, and the
    optimizer's present rate with it, whatever has set that.
    """

    _supports_tf_logs = True  # in Keras 2: nobody waits for the logs of a step for our sake

    def __init__(
        self,
        initial_lr: float | Callable[[], float],
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Arguments:

        initial_lr: the learning rate that is multiplied; or a function that returns it, called when training begins,
            for rates that are not in proportion to the number of ranks.
        multiplier: a function of the epoch or, for `multiplier ** (epoch - start_epoch)`, a number.
        staircase: set it once per epoch. Otherwise before every batch, for a fraction of an epoch; not with a number.
        momentum_correction: when the rate changes, rescale the momentum of SGD and RMSprop, in which the old one is
            contained (Goyal et al. 2017). Horovod changes the coefficient for one step, which comes to the same; a
            graph that has been compiled would not notice.
        steps_per_epoch: what fractions of an epoch are counted by, if `fit` does not know.
        """
        super().__init__()
        if not (callable(initial_lr) or (isinstance(initial_lr, (int, float)) and initial_lr > 0)):
            raise UsageError(
                f"initial_lr={initial_lr!r} must be a number greater than 0, such as the optimizer's learning rate"
            )
        self._give_rate = initial_lr if callable(initial_lr) else None
        self.initial_lr = 0.0 if callable(initial_lr) else float(initial_lr)
        self._size = world.size() if world.is_initialized() else 0
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier
        self._epoch = 0

    def multiplier(self, epoch: float) -> float:
        """The factor at an epoch, or a fraction of one."""
        if callable(self._multiplier):
            return self._multiplier(epoch)
        return self._multiplier ** (epoch - self.start_epoch)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Find out what the rate is for these ranks, and what fractions of an epoch are."""
        if self._give_rate is not None:
            self.initial_lr = float(self._give_rate())
        if regroup.is_elastic():
            self._adjust_to_size()
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise UsageError(
                f"{type(self).__name__} cannot know how many steps an epoch of this dataset has: pass steps_per_epoch "
                "to it"
            )

    def _adjust_to_size(self) -> None:
        """Adjust the rates to the number of ranks. Rank 0 says by how much: it was there before, if any rank was."""
        optimizer, size = self._optimizer(), world.size()
        if self._give_rate is None and self._size:
            self.initial_lr *= size / self._size
        self._size = size
        growth = size / getattr(optimizer, _SIZE, size)
        self.initial_lr, growth = collectives.broadcast(
            np.array([self.initial_lr, growth]), 0, "keras.learning_rate"
        ).tolist()
        attach(optimizer, _SIZE, size)
        if growth != 1 and self._give_rate is None:
            self._set(float(array_of(optimizer.learning_rate)) * growth)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Remember where we are, and climb a stair."""
        self._epoch = epoch
        if self.staircase and self._applies():
            self._set(self.initial_lr * self.multiplier(epoch))

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Go on smoothly."""
        if not self.staircase and self._applies():
            assert self.steps_per_epoch
            self._set(self.initial_lr * self.multiplier(self._epoch + batch / self.steps_per_epoch))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Put the learning rate into the logs."""
        if logs is not None:
            logs["lr"] = float(array_of(self._optimizer().learning_rate))

    def _applies(self) -> bool:
        return self.start_epoch <= self._epoch and (self.end_epoch is None or self._epoch < self.end_epoch)

    def _optimizer(self) -> Any:
        return self.model.optimizer

    def _set(self, rate: float) -> None:
        optimizer = self._optimizer()
        try:
            old = float(array_of(optimizer.learning_rate))
            optimizer.learning_rate = rate
        except (TypeError, AttributeError) as error:
            raise UsageError(
                f"{type(self).__name__} cannot set the learning rate of this {type(optimizer).__name__}, which has a "
                "schedule of its own or several optimizers: give it a number as learning_rate, or leave the callback "
                "out"
            ) from error
        if self.momentum_correction and old > 0 and rate != old:
            CHOSEN.scale(CHOSEN.velocities(optimizer), rate / old)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Lets the learning rate rise from `initial_lr / size` to `initial_lr`, batch by batch, in the first epochs.

    `initial_lr` is the one for all ranks together, typically that of one rank times `distrun.size()`.
    """

    def __init__(
        self,
        initial_lr: float | Callable[[], float],
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """`verbose=1` prints a line when it is done; for the rest see `LearningRateScheduleCallback`."""
        super().__init__(
            initial_lr,
            self._rise,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _rise(self, epoch: float) -> float:
        assert self.steps_per_epoch
        done = epoch + 1.0 / self.steps_per_epoch  # so that the last batch of the last epoch has the full rate
        size = _ranks_of(self._optimizer(), None).size()
        return (done * (size - 1) / self.warmup_epochs + 1) / size

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Tell when it is done."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.warmup_epochs - 1:
            rate = float(array_of(self._optimizer().learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


ModelCheckpoint: Any = CHOSEN.PACKAGE.callbacks.ModelCheckpoint
ProgbarLogger: Any = CHOSEN.PACKAGE.callbacks.ProgbarLogger
_ALTERING = tuple(getattr(CHOSEN.PACKAGE.callbacks, name) for name in CHOSEN.ALTERING)


class BestModelCheckpoint(ModelCheckpoint):
    """Rank 0 saves the model whenever it is better than before. Put it after `MetricAverageCallback`."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | None = None,
    ) -> None:
        """`filepath` is `best.keras` (`best.weights.h5` for the weights only) unless given; for the rest see
        `keras.callbacks.ModelCheckpoint`."""
        super().__init__(
            filepath or ("best.weights.h5" if save_weights_only else "best.keras"),
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Save, on rank 0."""
        if world.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save, on rank 0."""
        if world.rank() == 0:
            super().on_epoch_end(epoch, logs)


class _SilentProgbar(ProgbarLogger):
    """Keras adds a progress bar to callbacks that have none."""


for _name in dir(Callback):
    if _name.startswith("on_") or _name in ("set_params", "set_model"):
        setattr(_SilentProgbar, _name, getattr(Callback, _name))


def OnRankZero(callback: Any) -> Any:  # noqa: N802 - to its user it is a callback
    """`callback` on rank 0, and one that does nothing on the others: for what writes or prints.

    `OnRankZero(keras.callbacks.TensorBoard(...))`, ModelCheckpoint, CSVLogger, ProgbarLogger. Not for what changes the
    training, which must do so on all ranks.

    Raises:
        UsageError: `callback` is one of Keras's that change the training.
    """
    if not isinstance(callback, Callback):
        raise UsageError(
            f"OnRankZero takes a Keras callback, not {callback!r}: give it one, such as TensorBoard(log_dir)"
        )
    if isinstance(
        callback, (*_ALTERING, BroadcastGlobalVariablesCallback, MetricAverageCallback, LearningRateScheduleCallback)
    ):
        raise UsageError(
            f"{type(callback).__name__} changes the training, so OnRankZero would have the ranks part ways: give it to "
            "all ranks, after MetricAverageCallback if it looks at metrics"
        )
    if world.rank() == 0:
        return callback
    return _SilentProgbar() if isinstance(callback, ProgbarLogger) else Callback()


class ReportCallback(Callback):
    """Reports a metric to `distrun sweep` at the end of each epoch, where the trial may end; see `distrun.report`.

    It stands behind `MetricAverageCallback`. Outside of a sweep it does nothing.
    """

    def __init__(self, monitor: str = "val_loss") -> None:
        """Arguments:

        monitor: the metric; `loss` is there without validation data, too.
        """
        super().__init__()
        self.monitor = monitor

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Report, and end here if the trial is pruned.

        Raises:
            UsageError: there is no such metric.
            TrialPruned: the trial ends.
        """
        value = (logs or {}).get(self.monitor)
        if value is None:
            raise UsageError(
                f"ReportCallback({self.monitor!r}) finds no such metric: there are {', '.join(logs or {}) or 'none'}"
            )
        report(value, epoch + 1)
