"""The driver: the CUDA functions that distrun uses on one GPU, through cupy. Streams are addresses, as in CUDA."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import CollectiveError, UsageError
from distrun.runtime.gpu.buffers import DeviceBuffer

_DONE, _NOT_READY = 0, 600  # cudaSuccess, cudaErrorNotReady
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_LIBCUDA = "libcuda.so.1"


class DeviceError(CollectiveError):
    """Work that was queued on the GPU has failed. This process cannot use the GPU afterwards."""


class Event:
    """A point in the work of a stream. CUDA's event serves another point when this object is gone.

    That is safe: a stream that was made to wait waits for the point of then, whatever the event marks later.
    """

    __slots__ = ("_unused", "ptr")

    def __init__(self, ptr: int, unused: list[int]) -> None:
        self._unused = unused
        self.ptr = ptr

    def __del__(self) -> None:
        self._unused.append(self.ptr)


class Driver:
    """One GPU. Any thread may call. Methods that queue work expect that it is the thread's current one: see `use`."""

    def __init__(self, index: int) -> None:
        """
        Raises:
            UsageError: cupy is not installed, or CUDA shows no GPU of this number.
        """
        self.index = index
        self.cupy = cupy = _import_cupy()
        self._runtime = cupy.cuda.runtime
        try:
            count = self._runtime.getDeviceCount()
        except self._runtime.CUDARuntimeError as error:
            raise UsageError(f"CUDA cannot be used in this process ({error}): see `distrun doctor`") from None
        if index >= count:
            raise UsageError(
                f"this rank was to use GPU {index}, but CUDA shows {count}: is CUDA_VISIBLE_DEVICES changed?"
            )
        # All of cupy's events, since one that is collected as garbage destroys CUDA's, and the addresses of those that
        # are free.
        self._events: list[Any] = []
        self._unused: list[int] = []
        self._is_current = _Errors(self._runtime, index)

    @property
    def use(self) -> AbstractContextManager[None]:
        """A context manager that makes this the current GPU of this thread, and restores the previous one afterwards.

        A previous GPU without a context is not restored: since CUDA 12, making it current would create a context, which
        takes some hundred MB of its memory. Any error that CUDA reports inside the `with` block becomes a
        `DeviceError`.
        """
        before = self._runtime.getDevice()
        return self._is_current if before == self.index else _Use(self._runtime, self.index, before)

    @property
    def bus_id(self) -> str:
        """The PCI address, such as 0000:3b:00.0, which identifies the GPU in all processes of a host."""
        return str(self._runtime.deviceGetPCIBusId(self.index)).lower()

    @property
    def uuid(self) -> str:
        """The GPU's own identity, 16 bytes in hexadecimal, which no other GPU has."""
        return bytes(self._runtime.getDeviceProperties(self.index)["uuid"]).hex()

    # Streams and events ----------------------------------------------------------------------------------------------

    def new_stream(self) -> Any:
        """Return a stream that runs concurrently with the default stream. It is destroyed with the object."""
        with self.use:
            return self.cupy.cuda.Stream(non_blocking=True)

    def record(self, stream: int) -> Event:
        """Return the event after everything that is now queued on `stream`. The caller is inside `use`."""
        try:
            ptr = self._unused.pop()
        except IndexError:
            # `block`: a host thread that synchronises with the event sleeps instead of spinning.
            made = self.cupy.cuda.Event(block=True, disable_timing=True)
            self._events.append(made)
            ptr = made.ptr
        self._runtime.eventRecord(ptr, stream)
        return Event(ptr, self._unused)

    def wait(self, stream: int, event: Event) -> None:
        """Make work that is queued on `stream` later start after `event`. The caller, inside `use`, does not wait."""
        self._runtime.streamWaitEvent(stream, event.ptr)

    def is_done(self, event: Event) -> bool:
        """Return whether the device has passed `event`.

        Raises:
            DeviceError: the device has failed.
        """
        with self.use:
            status = self._runtime.eventQuery(event.ptr)  # `event.done` would report an error as "not yet"
        if status not in (_DONE, _NOT_READY):
            raise DeviceError(f"GPU {self.index} has failed: {self._runtime.CUDARuntimeError(status)}")
        return bool(status == _DONE)

    def synchronize(self, event: Event) -> None:
        """Block the host until the device has passed `event`.

        Raises:
            DeviceError: the device has failed.
        """
        with self.use:
            self._runtime.eventSynchronize(event.ptr)

    def is_capturing(self, stream: int) -> bool:
        """Return whether work queued on `stream` is captured into a CUDA graph. The caller is inside `use`."""
        # The legacy default stream is never captured, and asking fails while a blocking stream is.
        return bool(stream and self._runtime.streamIsCapturing(stream))

    def relax_capture(self) -> None:
        """Let this thread query events while another thread captures a CUDA graph, which would otherwise be
        invalidated."""
        _exchange_capture_mode(_RELAXED)

    @contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """Apply `relax_capture` inside the `with` block only."""
        before = _exchange_capture_mode(_RELAXED)
        try:
            yield
        finally:
            _exchange_capture_mode(before)

    # Memory ----------------------------------------------------------------------------------------------------------

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy between two addresses, on this GPU or in page-locked host memory."""
        if nbytes and target != source:
            self._runtime.memcpyAsync(target, source, nbytes, self._runtime.memcpyDefault, stream)

    def allocate(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Return uninitialised memory from cupy's pool, for use on `stream`."""
        owner = self.cupy.cuda.Stream.from_external(_ForeignStream(stream))
        with self.use, owner:
            memory = self.cupy.cuda.alloc(max(1, count * dtype.itemsize))
        # The stream object is kept alive with the memory: cupy's asynchronous pool frees memory on the stream object it
        # was allocated with if that still exists, else on the current stream.
        return DeviceBuffer(memory.ptr, count, dtype, (owner, memory))

    def pinned(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return a flat array in page-locked host memory, which the GPU accesses directly."""
        with self.use:
            memory = self.cupy.cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
        return np.frombuffer(memory, dtype, count)


class _Errors:
    """The context of `Driver.use` where the GPU is the current one already, as it nearly always is: one object for all
    blocks. (Classes, since a generator takes three times as long.)"""

    def __init__(self, runtime: Any, index: int) -> None:
        self._runtime = runtime
        self._index = index

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None and isinstance(error, self._runtime.CUDARuntimeError):
            raise DeviceError(f"GPU {self._index} has failed: {error}") from None


class _Use(_Errors):
    """The context of `Driver.use` where the GPU `before` is the current one."""

    def __init__(self, runtime: Any, index: int, before: int) -> None:
        super().__init__(runtime, index)
        self._before = before

    def __enter__(self) -> None:
        self._runtime.setDevice(self._index)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if _has_context(self._before):
            self._runtime.setDevice(self._before)
        super().__exit__(kind, error, trace)


class _ForeignStream:
    """A stream that cupy did not make, as an object of CUDA's stream protocol."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


def _exchange_capture_mode(mode: int) -> int:
    """Set this thread's mode of stream capture, and return the previous one."""
    exchanged = ctypes.c_int(mode)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(_LIBCUDA).cuThreadExchangeStreamCaptureMode(ctypes.byref(exchanged))
    return exchanged.value


def _has_context(index: int) -> bool:
    """Return whether this process has a context on GPU `index`."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(_LIBCUDA).cuDevicePrimaryCtxGetState(index, ctypes.byref(flags), ctypes.byref(active))
    return bool(active.value)


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise UsageError(
            f"GPU tensors need cupy, which cannot be imported ({error}): pip install 'distrun[cuda12]' or "
            "'distrun[cuda13]', as the CUDA version of your framework has it"
        ) from None
    if not hasattr(cupy.cuda.Stream, "from_external"):
        raise UsageError(
            f"GPU tensors need cupy 14 or newer, and this is {cupy.__version__}: pip install 'distrun[cuda12]' or "
            "'distrun[cuda13]', as the CUDA version of your framework has it"
        )
    return cupy
