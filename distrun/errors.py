"""The errors that distrun raises: one family, so that `except DistrunError` catches all of them and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING


class DistrunError(Exception):
    """Base class of every error that distrun raises on purpose. Its text is one sentence for the user."""

    # TensorFlow's AutoGraph reads this signature to raise an error again with a longer text. Type checkers must not see
    # it, as they would take every error for a plain Exception.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class UsageError(DistrunError, ValueError):
    """The caller asked for something impossible. The text has the value, what is allowed, and the remedy."""


class NotOfferedError(UsageError, NotImplementedError):
    """The caller asked for something that makes sense but is not offered, at all or in this mode of a framework."""


class NotInitializedError(DistrunError, ValueError):
    """A question about the world was asked before `distrun.init()` or after `distrun.shutdown()`."""


class LaunchError(DistrunError, RuntimeError):
    """The launcher could not start or finish the job."""


class BootstrapError(DistrunError, RuntimeError):
    """The ranks of a job could not find or trust one another."""


class RemoteError(DistrunError, RuntimeError):
    """A function that a `Coordinator` has scheduled raised an error on a worker. The text has its traceback."""


class CheckpointError(DistrunError, RuntimeError):
    """A checkpoint could not be written or read."""


class CollectiveError(DistrunError, RuntimeError):
    """A collective operation failed. Unless it is a `JobAbortedError`, the job can continue."""


HorovodInternalError = CollectiveError
"""Horovod's name for a collective that failed, so that scripts' `except` clauses for it catch distrun's."""


class MismatchError(CollectiveError):
    """Ranks disagreed about an operation. Every rank of the process set gets the same text."""


class StallError(CollectiveError):
    """An operation was given up because some ranks did not submit it within the stall timeout."""


class JobAbortedError(CollectiveError):
    """A peer is gone or the engine has been shut down: no operation can complete any longer."""


def is_about_lost_rank(error: BaseException) -> bool:
    """Return whether an exception is about a lost rank: it is such an error of distrun's, or was caused by one."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, (JobAbortedError, BootstrapError)):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False


def in_one_line(error: BaseException) -> str:
    """Return the type of an exception and the first line of its text, as at the end of a traceback."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
