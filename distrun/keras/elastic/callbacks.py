"""Callbacks that keep a state up to date while `fit` trains: one of ours, and Horovod's, with its names and arguments.

`ElasticCallback` does all. Horovod's three go together: `CommitStateCallback` first, then `UpdateBatchStateCallback`
and `UpdateEpochStateCallback`; with them the script calls `fit` for the epochs that are left, and an epoch in which
ranks come or go begins again.
"""

from __future__ import annotations

from typing import Any

from distrun.errors import UsageError
from distrun.keras.choice import CHOSEN
from distrun.keras.elastic.resuming import Course
from distrun.keras.elastic.state import KerasState

Callback: Any = CHOSEN.PACKAGE.callbacks.Callback
"""The base class of callbacks, of the Keras that `tf.keras` is."""

Logs = dict[str, Any] | None


class _StateCallback(Callback):
    """A callback with a state. In Keras 2, `fit` does not wait for the logs of each step because of it."""

    _supports_tf_logs = True

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state


class ElasticCallback(_StateCallback):
    """Marks a step boundary after each batch, and has `fit` go on where it was: `ElasticCallback(state)`.

    Nothing is copied. When ranks come or go, `fit` is left, and the training function called again. Then its `fit` goes
    on with the batch after the last that was done, in the same epoch. Data of `distrun.data.shard` is dealt out again,
    so that each sample is taken once in an epoch; of other data the epoch gets the batches that it still lacks.
    Callbacks see the numbers of batches and epochs as if nothing had happened; EarlyStopping, ReduceLROnPlateau and
    ModelCheckpoint go on from what they knew, and the History has all epochs. The metrics of an epoch are those of its
    batches since.

    `state.epoch` and `state.batch` say how many epochs, and batches of this one, are done. A `fit` for which `epoch` is
    set beforehand begins there.
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
        """`fit` asks it where to go on."""

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Mark the boundary behind the batch before. At the end of a batch Keras would wait for its results."""
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
        """Refuse data whose place in an epoch the state keeps: what is left of the epoch takes a `fit` of its own.

        Raises:
            UsageError: it is such data.
        """
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
        """Count, and commit. In between there is a step boundary, too, at which nothing is copied."""
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(_StateCallback):
    """Keeps the number of the last batch in `state.batch`; it is 0 again at the end of an epoch."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.steps_per_epoch: int | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Forget how long an epoch was with other ranks."""
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Say how many steps are left, in `params`."""
        if (self.params or {}).get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Note the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Begin again."""
        self.state.batch = 0


class UpdateEpochStateCallback(_StateCallback):
    """Keeps the number of epochs that are done in `state.epoch`, those before this `fit` included."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """Note how many there are already, since Keras counts from 0."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Count one more."""
        self.state.epoch = self.initial_epoch + epoch + 1
