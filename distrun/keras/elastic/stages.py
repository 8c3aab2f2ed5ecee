"""A list of callbacks for several calls of Keras's `fit` that are one `fit` to the callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distrun.keras.library import mixed

if TYPE_CHECKING:  # it imports this module
    from distrun.keras.elastic.resuming import Course


def callback_list(keras: Any, course: Course, callbacks: Sequence[Any], steps_known: int | None, **options: Any) -> Any:
    """Return a CallbackList with `callbacks` and two more, which tell `course` about batches and epochs."""
    base = keras.callbacks.Callback
    last = mixed(_Last, base)(course)
    made = mixed(_Stages, keras.callbacks.CallbackList)(
        [mixed(_First, base)(course, steps_known), *callbacks, last], **options
    )
    made.distrun_course, last.distrun_list = course, made
    return made


class _Stages:
    """The list."""

    distrun_course: Course
    distrun_offset = 0
    """The number of batches of the epoch that were done before."""
    distrun_has_begun = False
    distrun_logs: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.distrun_course.settle()
        if not self.distrun_has_begun:
            self.distrun_has_begun = True
            super().on_train_begin(logs)  # type: ignore[misc]
            self.distrun_course.restore(self)

    def on_train_end(self, logs: Any = None) -> None:
        self.distrun_logs = logs

    def distrun_end(self) -> None:
        """End the training, after the last `fit`."""
        super().on_train_end(self.distrun_logs)  # type: ignore[misc]

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_begin(batch + self.distrun_offset, logs)  # type: ignore[misc]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch + self.distrun_offset, logs)  # type: ignore[misc]


class _First:
    """The first callback, which notes the last batch of an epoch before the others handle the epoch's end."""

    _supports_tf_logs = True

    def __init__(self, course: Course, steps_known: int | None) -> None:
        super().__init__()
        self._course = course
        self._steps_known = steps_known
        self._begun = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun = batch + 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._course.end_batches(self._steps_known or self._begun, logs or {})


class _Last:
    """The last callback, which notes the end of an epoch after the others have handled it."""

    model: Any
    distrun_list: Any = None

    def __init__(self, course: Course) -> None:
        super().__init__()
        self._course = course

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._course.end_epoch(epoch, logs or {}, self.distrun_list, bool(self.model.stop_training))
