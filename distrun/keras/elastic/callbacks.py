"""Callbacks that keep a state up to date while `fit` trains: distrun's own, and Horovod's with its names and arguments.

`ElasticCallback` does everything. Horovod's three are used together: `CommitStateCallback` first, then
`UpdateBatchStateCallback` and `UpdateEpochStateCallback`. With them the script calls `fit` for the epochs that are
left, and an epoch starts again if ranks come or go in it.
"""

from __future__ import annotations

from typing import Any

from distrun.errors import UsageError
from distrun.keras.callbacks.base import Callback, Logs
from distrun.keras.elastic.resuming import Course
from distrun.keras.elastic.state import KerasState


class _StateCallback(Callback):
    """A callback with a state. In Keras 2, `fit` does not wait for the logs of each step because of it."""

    _supports_tf_logs = True

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state


class ElasticCallback(_StateCallback):
    """Marks a step boundary after each batch, and lets `fit` continue where it was: `ElasticCallback(state)`.

    Nothing is copied. When ranks come or go, `fit` is left, and the training function is called again. Then its `fit`
    continues with the next batch of the same epoch. Data of `distrun.data.shard` is divided again, so that each sample
    is taken once in an epoch. With other data the epoch gets the batches that it still lacks. Callbacks see the numbers
    of batches and epochs as if nothing had happened. EarlyStopping, ReduceLROnPlateau and ModelCheckpoint keep their
    state, and the History has all epochs. The metrics of such an epoch cover only its batches since the change.

    `state.epoch` and `state.batch` are the numbers of epochs, and of batches of this epoch, that are done. If
    `state.epoch` is set before a `fit`, it begins there.
    """

    def __init__(self, state: Any) -> None:
        """Make one for a `KerasState`.

        Raises:
            UsageError: this is another state.
        """
        super().__init__(state)
        if not isinstance(state, KerasState):
            raise UsageError(f"ElasticCallback takes a KerasState, and this is a {type(state).__name__}: give it one")
        self.distrun_course = Course(state)
        """Tells `fit` where to continue."""

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Mark the boundary after the batch before. At the end of a batch, Keras would wait for its results."""
        self.distrun_course.reach(batch)


class CommitStateCallback(_StateCallback):
    """Commits the state after each `batches_per_commit` batches, and after each epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        """Make one.

        Raises:
            UsageError: `batches_per_commit` is not a whole number greater than 0.
        """
        super().__init__(state)
        if not (isinstance(batches_per_commit, int) and batches_per_commit > 0):
            raise UsageError(f"batches_per_commit={batches_per_commit!r} must be a whole number greater than 0")
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def distrun_check(self, data: Any) -> None:
        """Refuse data whose position in an epoch is part of the state: its rest needs a `fit` of its own."""
        position = getattr(data, "position", None)
        kept = [name for name, value in vars(self.state).items() if getattr(value, "position", value) is position]
        if position is not None and kept:
            raise UsageError(
                f"CommitStateCallback cannot go on inside an epoch of state.{kept[0]}: use ElasticCallback(state), "
                "which can, in place of it and its siblings"
            )

    def on_train_begin(self, logs: Logs = None) -> None:
        """Count again, so that all ranks count alike."""
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Count, and commit after `batches_per_commit` batches."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(_StateCallback):
    """Keeps the number of the last batch in `state.batch`, and sets it to 0 at the end of an epoch."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Forget how long an epoch was with other ranks."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Set the number of steps that are left in `params`."""
        if (self.params or {}).get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Set `state.batch`."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Set `state.batch` to 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(_StateCallback):
    """Keeps the number of epochs that are done in `state.epoch`, including epochs before this `fit`."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """Keep the number of epochs that are done already, because Keras counts from 0."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Set `state.epoch`."""
        self.state.epoch = self.initial_epoch + epoch + 1
