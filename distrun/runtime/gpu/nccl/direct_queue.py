"""The direct queue: operations that the calling thread queues on the GPU itself, without negotiation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.gpu.in_flight import InFlightOperation
from distrun.tracing import recording

if TYPE_CHECKING:
    from distrun.runtime.gpu.gpu import Gpu
    from distrun.runtime.gpu.nccl_backend import NcclBackend


class DirectQueue:
    """A communicator and a stream of the ranks of a process set, which nothing else uses.

    Nobody checks what is queued here. Its user guarantees that all ranks queue the same operations in the same order.
    An operation that a rank does not queue never ends on the others, until the job is aborted.
    """

    def __init__(self, gpu: Gpu, backend: NcclBackend, stream: Any) -> None:
        """`stream` is the stream of `backend`, which lives as long as this object."""
        self._gpu = gpu
        self._backend = backend
        self._stream = stream
        self._unconfirmed: list[InFlightOperation] = []

    def queue(self, handle: DeviceHandle) -> DeviceHandle:
        """Queue an operation, which is done for the host, and return it. One thread at a time calls this.

        Raises:
            JobAbortedError: the operations on the device have been aborted.
            CollectiveError: the operation failed, and with it the job.
        """
        handle.submitted = began = time.monotonic_ns()
        self._gpu.queue_directly(handle, self._backend)
        if handle.operation is not None:
            self._unconfirmed.append(handle.operation)
        if recording.ring is not None:
            recording.ring.done((handle,), began)
        handle.done = True
        return handle

    def confirm(self) -> None:
        """Note that all ranks have queued the operations that this rank has: a stall is now one of the devices."""
        for operation in self._unconfirmed:
            operation.is_everywhere = True
        self._unconfirmed = []
