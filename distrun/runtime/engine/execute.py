"""Executing operations that have been decided, and completing them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from distrun.errors import CollectiveError, JobAbortedError, UsageError
from distrun.runtime.backends import dispatch
from distrun.runtime.backends.groups import Groups
from distrun.runtime.engine.membership import KINDS, Membership
from distrun.runtime.engine.state import ProgressState
from distrun.runtime.gpu.monitor import GpuMonitor
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import CPU
from distrun.runtime.transport.local_group import LocalGroup
from distrun.tracing import recording

if TYPE_CHECKING:
    from distrun.runtime.gpu.handles import DeviceHandle


class Executor:
    """Hands operations to the host's backend or the GPU, and notifies the threads that wait for them."""

    def __init__(
        self,
        groups: Groups,
        membership: Membership,
        gpu_monitor: GpuMonitor,
        local_group: LocalGroup,
        state: ProgressState,
    ) -> None:
        self._groups = groups
        self._membership = membership
        self._gpu_monitor = gpu_monitor
        self._local_group = local_group
        self._state = state
        self._ring = recording.ring

    def execute(self, handles: Sequence[Handle]) -> None:
        """Execute operations that are fused into one, and complete them.

        Raises:
            JobAbortedError: nothing can complete any longer. `handles` are not done.
        """
        began = time.monotonic_ns()
        try:
            request = handles[0].request
            if request.kind != "allreduce" and request.kind in KINDS:
                self._membership.execute(handles[0])
            elif request.device == CPU or handles[0].stands_in:
                with np.errstate(all="ignore"):  # overflow and NaN are results, as on any device
                    dispatch.execute(self._groups, handles)
            else:
                self._gpu_monitor.gpu().execute(cast("Sequence[DeviceHandle]", handles))
        except UsageError as error:  # the GPUs cannot do what was asked for; all ranks find that out in the same place
            for handle in handles:
                handle.error = error
        except CollectiveError as error:
            raise JobAbortedError(*error.args) from None
        if self._ring is not None:
            self._ring.done(handles, began)
        self.tell(handles)

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
