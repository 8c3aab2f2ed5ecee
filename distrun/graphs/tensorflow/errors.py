"""Errors of distrun as errors of TensorFlow: in a graph by their status, eagerly by their class.

Scripts written for Horovod expect tf.errors.FailedPreconditionError if ranks disagree, and
tf.errors.InvalidArgumentError if an argument turns out to be invalid when the operation runs.
"""

from __future__ import annotations

import tensorflow as tf

from distrun import errors


class MismatchError(errors.MismatchError, tf.errors.FailedPreconditionError):
    """A `distrun.MismatchError` that is also a tf.errors.FailedPreconditionError."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)
        self.args = (message,)


class UsageError(errors.UsageError, tf.errors.InvalidArgumentError):
    """A `UsageError` that is also a tf.errors.InvalidArgumentError."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)
        self.args = (message,)


def for_tensorflow(error: errors.DistrunError) -> errors.DistrunError:
    """Return the error to raise eagerly for `error`. Most are raised as they are."""
    for kind in (MismatchError, UsageError):
        if type(error) is kind.__bases__[0]:
            return kind(str(error))
    return error


def status_code(error: BaseException) -> int:
    """Return the status of a node in a graph that has failed with `error`. Python sees a tf.errors.OpError with it.

    It is never ABORTED or UNAVAILABLE, which a MonitoredTrainingSession regards as transient: it would retry for ever.
    """
    if isinstance(error, errors.MismatchError | errors.NotInitializedError):
        return int(tf.errors.FAILED_PRECONDITION)
    if isinstance(error, errors.UsageError):
        return int(tf.errors.INVALID_ARGUMENT)
    return int(tf.errors.UNKNOWN if isinstance(error, errors.CollectiveError) else tf.errors.INTERNAL)
