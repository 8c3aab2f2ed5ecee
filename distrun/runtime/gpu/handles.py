"""Handles of operations on GPU buffers. For the host, they are done as soon as the operation is queued."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from distrun.runtime.gpu.buffers import Arena, DeviceBuffer
from distrun.runtime.gpu.driver import Event
from distrun.runtime.gpu.in_flight import InFlightOperation
from distrun.runtime.operations.engine import Engine
from distrun.runtime.operations.handle import Handle, outputs_of
from distrun.runtime.operations.request import Request

if TYPE_CHECKING:
    from distrun.runtime.gpu.gpu import Gpu


class GpuEngine(Engine, Protocol):
    """The interface of an engine that operations on GPU buffers use."""

    def gpu(self) -> Gpu:
        """The GPU of this rank.

        Raises:
            UsageError: the rank has no GPU, or it cannot be used.
        """

    def fail(self, reason: str) -> None:
        """Let nothing complete any longer on any rank."""


class DeviceHandle(Handle):
    """One submitted operation on GPU buffers.

    It must be made by the thread that has queued the work that produces the inputs, with the same current stream: the
    operation starts on the device after this work.
    """

    engine: GpuEngine
    inputs: Sequence[DeviceBuffer]  # type: ignore[assignment]
    outputs: Sequence[DeviceBuffer]  # type: ignore[assignment]
    finished: Event | None = None
    """The event after the operation on the communication stream. None until the operation is queued."""
    operation: InFlightOperation | None = None
    """The in-flight operation, which keeps this handle alive until the device has passed `finished`."""
    kept_alive: Sequence[Any] = ()
    """Further objects to keep alive until then. To be set before the handle is started."""
    opens_queue = False
    """Whether a `DirectQueue` is opened with this operation, as `given`. To be set before the handle is started."""

    def __init__(
        self,
        engine: GpuEngine,
        request: Request,
        inputs: Sequence[DeviceBuffer],
        outputs: Sequence[DeviceBuffer] = (),
        collect: Callable[[Handle], Any] = outputs_of,
        given: Any = None,
        *,
        arena: Arena,
    ) -> None:
        """For the arguments see `Handle`. `arena` owns the inputs and outputs, and allocates further outputs."""
        super().__init__(engine, request, inputs, outputs, collect, given)  # type: ignore[arg-type]
        self.arena = arena
        self.gpu = gpu = engine.gpu()
        self.stream = stream = arena.current_stream()
        self.ready = gpu.record_inputs(stream)

    def poll(self) -> bool:
        """Return whether the operation is done on the device, or has failed, without waiting."""
        if not super().poll():
            return False
        return self.finished is None or self.gpu.driver.is_done(self.finished)

    def wait(self) -> Any:
        """Wait until the operation is queued. Return its result, for work that this thread queues later.

        The host does not wait for the device, except in elastic jobs: to read the result on the host, synchronise as
        for any other GPU computation. Raises what `Handle.wait` raises.
        """
        if not self.done:
            self.engine.wait(self)
        finished, gpu = self.finished, self.gpu
        if finished is not None and self.error is None:
            if gpu.is_elastic:
                gpu.await_end(self)
            if self.error is None:
                stream = self.arena.current_stream()
                gpu.join(stream, self.stream, finished)
                if stream == self.stream and self.operation is not None:
                    self.operation.release(self)
        return super().wait()


Allocate = Callable[[DeviceHandle, int, np.dtype[Any]], DeviceBuffer]
"""Allocates a result with the given number of elements and dtype, which the communication stream may write."""


def room_for(handle: DeviceHandle, index: int, count: int, dtype: np.dtype[Any], allocate: Allocate) -> DeviceBuffer:
    """Return where the result of the tensor at `index` goes: the output that the handle was given, if it has as many
    elements, else a new one."""
    if handle.outputs and handle.outputs[index].size == count:
        return handle.outputs[index]
    return allocate(handle, count, dtype)
