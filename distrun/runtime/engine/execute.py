"""Executing operations that have been decided, and completing them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from distrun.errors import CollectiveError, JobAbortedError, UsageError
from distrun.runtime.backends import dispatch
from distrun.runtime.backends.groups import Groups
from distrun.runtime.engine.state import ProgressState
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import (
    ADD_PROCESS_SET,
    CPU,
    DISSOLVE_PROCESS_SET,
    FORM_PROCESS_SET,
    REMOVE_PROCESS_SET,
)
from distrun.runtime.transport.local_group import LocalGroup
from distrun.tracing import recording

_OF_PROCESS_SETS = (ADD_PROCESS_SET, REMOVE_PROCESS_SET, FORM_PROCESS_SET, DISSOLVE_PROCESS_SET)


class Executor:
    """Hands operations to the host's backend or the GPU, and notifies the threads that wait for them."""

    def __init__(
        self,
        groups: Groups,
        controller: Controller | None,
        local_group: LocalGroup,
        state: ProgressState,
    ) -> None:
        """`controller` is given on the coordinator. The other arguments are the engine's."""
        self._groups = groups
        self._controller = controller
        self._local_group = local_group
        self._state = state
        self._ring = recording.ring
        self._next_set = 1

    def execute(self, handles: Sequence[Handle]) -> None:
        """Execute operations that are fused into one, and complete them.

        Raises:
            JobAbortedError: nothing can complete any longer. `handles` are not done.
        """
        began = time.monotonic_ns()
        try:
            request = handles[0].request
            if request.kind != "allreduce" and request.kind in _OF_PROCESS_SETS:
                self._change_sets(handles[0])
            elif request.device == CPU or handles[0].stands_in:
                with np.errstate(all="ignore"):  # overflow and NaN are results, as on any device
                    dispatch.execute(self._groups, handles)
            else:
                handles[0].gpu.execute(handles)  # type: ignore[attr-defined]
        except UsageError as error:  # the GPUs cannot do what was asked for; all ranks find that out in the same place
            for handle in handles:
                handle.error = error
        except CollectiveError as error:
            raise JobAbortedError(*error.args) from None
        if self._ring is not None:
            self._ring.done(handles, began)
        self.tell(handles)

    def _change_sets(self, handle: Handle) -> None:
        """Add a process set, and set `handle.given` to its number, or remove one.

        The numbers agree, since all ranks execute these operations of the world in the same order.
        """
        ((*numbers,),) = handle.request.shapes
        if handle.request.kind in (ADD_PROCESS_SET, FORM_PROCESS_SET):
            handle.given = number = self._next_set
            self._next_set += 1
            self._groups.add(number, numbers, handle.title)
            if self._controller is not None:
                self._controller.add_process_set(number, numbers)
            return
        (number,) = numbers
        self._groups.remove(number, handle.title)
        if self._controller is not None:
            self._controller.remove_process_set(number)

    def complete(self, handles: Sequence[Handle]) -> None:
        """Complete operations whose results or errors arrived in messages, one by one."""
        if self._ring is not None:
            began = time.monotonic_ns()
            for handle in handles:
                self._ring.done((handle,), began)
        self.tell(handles)

    def tell(self, handles: Iterable[Handle]) -> None:
        """Mark `handles` as done, and notify the threads that wait. Their results or errors are in place."""
        for handle in handles:
            handle.done = True
            if handle.when_done is not None:
                handle.when_done(handle)
        self._local_group.clear_nudge()
        if self._state.waiters:
            self._state.notify()
