"""Giving up operations that take too long, and with them the process group that has started them.

Each operation has its group's timeout. A stall timeout of the world would also end what another group may wait for
longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from distrun.errors import CollectiveError, StallError
from distrun.runtime.negotiation.inquiries import WHO
from distrun.runtime.operations.handle import Handle

_REMEDY = "see where they are, or give the group a longer `timeout`"


class GroupHealth:
    """The name of a process group, and the error after which it runs no more collectives, if any.

    An operation that is not done within the group's timeout is given up for all ranks: the others fail in it too, as
    soon as they call it. Then the ranks may be at different places in their programs, and their next calls would be
    matched with each other all the same. So such a group refuses all later collectives, on each of its ranks.
    """

    __slots__ = ("given_up", "label")

    def __init__(self, label: str) -> None:
        """`label` is the name of the group in messages for people."""
        self.label = label
        self.given_up: str | None = None
        """The error of the operation that was given up; None while there is none."""

    def refuse(self) -> None:
        """Refuse a collective after an operation was given up. Raises `StallError`."""
        raise StallError(
            f"process group {self.label!r} carries no more collectives, for it gave one up ({self.given_up}): destroy "
            "it on all its ranks, and make another one"
        )

    def error(self, error: CollectiveError) -> CollectiveError:
        """Return the error of an operation with the name of the group, and keep it if the operation was given up."""
        if isinstance(error, StallError):
            self.given_up = self.given_up or str(error)
        return type(error)(f"process group {self.label!r}: {error}")

    def time_is_up(self, handle: Handle, timeout: float) -> None:
        """Give up an operation that is not done within the group's timeout. Afterwards it is done, with an error.

        If the last rank has called it meanwhile, it may have succeeded.
        """
        said = f"was not done within its timeout of {timeout:g} s"
        who = handle.engine.give_up(handle, f"{said}: {WHO}; {_REMEDY}")
        if not handle.done:
            _detach(handle)
            handle.error = StallError(f"{handle.title} {said}: {who or 'no rank is known to be missing'}; {_REMEDY}")
            handle.done = True

    def wait_is_over(self, handle: Handle, seconds: float) -> StallError | None:
        """Return the error of a wait that ends before the operation, which continues; None if it is done meanwhile."""
        who = handle.engine.who_is_missing(handle)
        if handle.done:
            return None
        handle.engine.error_reported()
        return StallError(
            f"process group {self.label!r}: {handle.title} was not done within its timeout of {seconds:g} s: "
            f"{who or 'no rank is known to be missing'}; {_REMEDY}"
        )


def _detach(handle: Handle) -> None:
    """Replace the arrays of an operation, which may still run later, by copies, so that it does not use the caller's
    memory."""
    copies: dict[int, Any] = {}

    def copy_of(array: Any) -> Any:
        if not isinstance(array, np.ndarray):  # on a GPU
            return array
        return copies.setdefault(id(array), array.copy())

    handle.inputs = [copy_of(array) for array in handle.inputs]
    handle.outputs = [copy_of(array) for array in handle.outputs]
