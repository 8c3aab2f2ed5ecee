"""Callbacks that act on rank 0 only, since they write or print."""

from __future__ import annotations

from typing import Any

from distrun.errors import UsageError
from distrun.keras.callbacks.base import Callback, Logs
from distrun.keras.callbacks.learning_rates import LearningRateScheduleCallback
from distrun.keras.callbacks.synchronising import BroadcastGlobalVariablesCallback, MetricAverageCallback
from distrun.keras.choice import CHOSEN
from distrun.runtime.world import world

ModelCheckpoint: Any = CHOSEN.PACKAGE.callbacks.ModelCheckpoint
ProgbarLogger: Any = CHOSEN.PACKAGE.callbacks.ProgbarLogger
_ALTERING = ("EarlyStopping", "TerminateOnNaN", "ReduceLROnPlateau", "LearningRateScheduler", "BackupAndRestore")


class BestModelCheckpoint(ModelCheckpoint):
    """Saves the model on rank 0 whenever it is better than before. Put it after `MetricAverageCallback`."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | None = None,
    ) -> None:
        """`filepath` is `best.keras` (`best.weights.h5` for the weights only) unless given. For the rest see
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
    """A progress bar that prints nothing, for ranks other than 0: Keras adds one to callbacks that have none."""


for _name in dir(Callback):
    if _name.startswith("on_") or _name in ("set_params", "set_model"):
        setattr(_SilentProgbar, _name, getattr(Callback, _name))


def OnRankZero(callback: Any) -> Any:  # noqa: N802 - to its user it is a callback
    """Return `callback` on rank 0, and a callback that does nothing on other ranks.

    It is for callbacks that write or print: `OnRankZero(keras.callbacks.TensorBoard(...))`, ModelCheckpoint, CSVLogger,
    ProgbarLogger. A callback that changes the training must run on all ranks.

    Raises:
        UsageError: `callback` is known to change the training.
    """
    if not isinstance(callback, Callback):
        raise UsageError(
            f"OnRankZero takes a Keras callback, not {callback!r}: give it one, such as TensorBoard(log_dir)"
        )
    altering = [getattr(CHOSEN.PACKAGE.callbacks, name) for name in _ALTERING]
    altering += [BroadcastGlobalVariablesCallback, MetricAverageCallback, LearningRateScheduleCallback]
    if isinstance(callback, tuple(altering)):
        raise UsageError(
            f"{type(callback).__name__} changes the training, so OnRankZero would have the ranks part ways: give it to "
            "all ranks, after MetricAverageCallback if it looks at metrics"
        )
    if world.rank() == 0:
        return callback
    return _SilentProgbar() if isinstance(callback, ProgbarLogger) else Callback()
