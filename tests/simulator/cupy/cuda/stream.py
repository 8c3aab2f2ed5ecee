"""Streams and events as objects."""

from __future__ import annotations

import sys
import threading
from typing import Any

from cupy.cuda import runtime


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stacks: dict[int, list[Any]] = {}
        self.devices: list[int] = []

    def stack(self, device: int) -> list[Any]:
        return self.stacks.setdefault(device, [Stream.null])


def get_current_stream(device_id: int = -1) -> Any:
    """Return the calling thread's stream on a device, by default on the current one."""
    return _thread.stack(runtime.getDevice() if device_id == -1 else device_id)[-1]


class Event:
    """An event, destroyed with the object."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.ptr = 0
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        flag = (
            (block and runtime.eventBlockingSync)
            | (disable_timing and runtime.eventDisableTiming)
            | (interprocess and runtime.eventInterprocess)
        )
        self.ptr = runtime.eventCreateWithFlags(flag)

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if not is_finalizing() and self.ptr:
            runtime.eventDestroy(self.ptr)

    @property
    def done(self) -> bool:
        return bool(runtime.eventQuery(self.ptr) == 0)

    def record(self, stream: Any = None) -> None:
        runtime.eventRecord(self.ptr, get_current_stream().ptr if stream is None else stream.ptr)

    def synchronize(self) -> None:
        runtime.eventSynchronize(self.ptr)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return the milliseconds between two events."""
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


class _BaseStream:
    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __enter__(self) -> Any:
        device = self._device()
        _thread.stack(device).append(self)
        _thread.devices.append(device)
        return self

    def __exit__(self, *args: object) -> None:
        _thread.stack(_thread.devices.pop()).pop()

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def _device(self) -> int:
        current = runtime.getDevice()
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id})"
                f" does not match with the current device ({current})"
            )
        return current

    def use(self) -> Any:
        _thread.stack(self._device())[-1] = self
        return self

    @property
    def done(self) -> bool:
        return runtime.streamQuery(self.ptr) == 0

    def synchronize(self) -> None:
        runtime.streamSynchronize(self.ptr)

    def record(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        runtime.eventRecord(event.ptr, self.ptr)
        return event

    def wait_event(self, event: Any) -> None:
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def is_capturing(self) -> bool:
        return runtime.streamIsCapturing(self.ptr)


class Stream(_BaseStream):
    """A stream, destroyed with the object."""

    null: Any = None

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        self.ptr = 0
        self._foreign_stream_ref: Any = None
        if ptds:
            raise NotImplementedError("the simulated GPU has no default streams per thread")
        if null:
            super().__init__(0, -1)
            return
        flag = runtime.streamNonBlocking if non_blocking else runtime.streamDefault
        super().__init__(runtime.streamCreateWithPriority(flag, priority or 0), runtime.getDevice())

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if not is_finalizing() and self._foreign_stream_ref is None and self.ptr not in (0, 1, 2):
            runtime.streamDestroy(self.ptr)

    @classmethod
    def from_external(cls, obj: Any) -> Stream:
        """Return the stream of a foreign object, which it keeps alive."""
        try:
            version, stream_ptr = obj.__cuda_stream__()
        except AttributeError as error:
            raise TypeError(
                f"Object of type {type(obj).__name__} does not implement "
                "the CUDA stream protocol (__cuda_stream__ method)"
            ) from error
        except (TypeError, ValueError) as error:
            raise TypeError("__cuda_stream__() must return a 2-tuple of (version, stream_ptr)") from error
        if not isinstance(version, int) or not isinstance(stream_ptr, int):
            raise TypeError(
                f"__cuda_stream__() must return (int, int), got ({type(version).__name__}, {type(stream_ptr).__name__})"
            )
        if version != 0:
            raise TypeError(f"__cuda_stream__() returned unsupported version {version}, only version 0 is supported")
        stream = cls.__new__(cls)
        _BaseStream.__init__(stream, stream_ptr, -1)
        stream._foreign_stream_ref = obj
        return stream


Stream.null = Stream(null=True)
_thread = _Thread()
