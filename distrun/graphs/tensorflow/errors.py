"""Errors of ours that are TensorFlow's, too: in a graph by their status, eagerly by their class.

Scripts written for Horovod expect tf.errors.FailedPreconditionError where ranks disagree, and
tf.errors.InvalidArgumentError where an argument is found to be impossible when the operation runs.
"""

from __future__ import annotations

import tensorflow as tf

from distrun import errors


class MismatchError(errors.MismatchError, tf.errors.FailedPreconditionError):
    """A `distrun.MismatchError` that is a tf.errors.FailedPreconditionError, too."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)
        self.args = (message,)


class UsageError(errors.UsageError, tf.errors.InvalidArgumentError):
    """A `UsageError` that is a tf.errors.InvalidArgumentError, too."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)
        self.args = (message,)


def for_tensorflow(error: errors.DistrunError) -> errors.DistrunError:
    """The error to raise eagerly for one of ours; most are raised as they are."""
    for kind in (MismatchError, UsageError):
        if type(error) is kind.__bases__[0]:
            return kind(str(error))
    return error


def status_code(error: BaseException) -> int:
    """The status of a node in a graph that has failed with this error; Python sees a tf.errors.OpError of this code.

    It is never ABORTED or UNAVAILABLE, which a MonitoredTrainingSession takes for a passing trouble: it would begin
    again without end.
    """
    if isinstance(error, errors.MismatchError | errors.NotInitializedError):
        return int(tf.errors.FAILED_PRECONDITION)
    if isinstance(error, errors.UsageError):
        return int(tf.errors.INVALID_ARGUMENT)
    return int(tf.errors.UNKNOWN if isinstance(error, errors.CollectiveError) else tf.errors.INTERNAL)
