"""Membership: adding and removing process sets, by operations of the world that every rank executes in one order."""

from __future__ import annotations

from distrun.runtime.backends.groups import Groups
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import (
    ADD_PROCESS_SET,
    DISSOLVE_PROCESS_SET,
    FORM_PROCESS_SET,
    REMOVE_PROCESS_SET,
)

KINDS = (ADD_PROCESS_SET, REMOVE_PROCESS_SET, FORM_PROCESS_SET, DISSOLVE_PROCESS_SET)
"""The operations that are executed here."""


class Membership:
    """Numbers the process sets. The numbers agree, since all ranks execute the same operations in the same order."""

    def __init__(self, groups: Groups, controller: Controller | None = None) -> None:
        """`controller` is given on the coordinator."""
        self._groups = groups
        self._controller = controller
        self._next = 1

    def execute(self, handle: Handle) -> None:
        """Register or remove a process set. Sets `handle.given` to the number of the set that is registered.

        Raises:
            CollectiveError: a rank is gone, or cannot be reached.
        """
        ((*numbers,),) = handle.request.shapes
        if handle.request.kind in (ADD_PROCESS_SET, FORM_PROCESS_SET):
            number = self._next
            self._next += 1
            self._groups.add(number, tuple(numbers), handle.title)
            if self._controller is not None:
                self._controller.add_process_set(number, numbers)
            handle.given = number
            return
        (number,) = numbers
        self._groups.remove(number, handle.title)
        if self._controller is not None:
            self._controller.remove_process_set(number)
