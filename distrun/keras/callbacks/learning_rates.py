"""Callbacks that set the learning rate, in proportion to the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distrun.errors import UsageError
from distrun.keras.callbacks.base import Callback, Logs, ranks_of
from distrun.keras.choice import CHOSEN
from distrun.keras.library import attach
from distrun.keras.values import array_of
from distrun.runtime import collectives
from distrun.runtime.world import regroup, world

_SIZE = "_distrun_rate_for"
"""The attribute of an optimizer that holds the number of ranks that its learning rate is meant for."""


class LearningRateScheduleCallback(Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)`, in epochs from `start_epoch` on and before
    `end_epoch`.

    In an elastic job rates are in proportion to the number of ranks. When that changes, `initial_lr` and the
    optimizer's present rate change with it, even if something else has set that rate.
    """

    _supports_tf_logs = True  # in Keras 2: so that Keras does not wait for the logs of each step

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

        initial_lr: the learning rate that is multiplied, or a function that returns it, called when training begins,
            for rates that are not in proportion to the number of ranks.
        multiplier: a function of the epoch or, for `multiplier ** (epoch - start_epoch)`, a number.
        staircase: set it once per epoch. Otherwise before every batch, for a fraction of an epoch.
        momentum_correction: when the rate changes, rescale the momentum of SGD and RMSprop, in which the old rate is
            contained (Goyal et al. 2017). Horovod changes the coefficient for one step instead, with the same effect,
            but a compiled graph would not see that.
        steps_per_epoch: the number of steps in an epoch, if `fit` does not know it.
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
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier
        self._epoch = 0

    def multiplier(self, epoch: float) -> float:
        """Return the factor at an epoch, which may be a fraction."""
        if callable(self._multiplier):
            return self._multiplier(epoch)
        return self._multiplier ** (epoch - self.start_epoch)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Set the rate for the present number of ranks, and the number of steps in an epoch."""
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
        """Adjust the rates to the number of ranks, on all ranks by rank 0's factor: if any rank was in the job before,
        rank 0 was."""
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
        """Remember the epoch and, with `staircase`, set its rate."""
        self._epoch = epoch
        if self.staircase and self._applies():
            self._set(self.initial_lr * self.multiplier(epoch))

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Without `staircase`, set the rate of this batch."""
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
    """Raises the learning rate from `initial_lr / size` to `initial_lr`, batch by batch, in the first epochs.

    `initial_lr` is the rate for all ranks together, typically the rate of a single rank times `distrun.size()`.
    """

    def __init__(
        self,
        initial_lr: float | Callable[[], float],
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """`verbose=1` prints a line on rank 0 at the end of the warmup. For the rest see
        `LearningRateScheduleCallback`."""
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
        size = ranks_of(self._optimizer(), None).size()
        return (done * (size - 1) / self.warmup_epochs + 1) / size

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Print a line at the end of the warmup, with `verbose`."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.warmup_epochs - 1 and world.rank() == 0:
            rate = float(array_of(self._optimizer().learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")
