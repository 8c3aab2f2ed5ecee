"""Arrays: shape and type over device memory, which can be copied and viewed. Arithmetic is left out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from simulator import blocks, machine, streams
from simulator.recorder import record
from simulator.streams import Operation

from cupy.cuda import runtime
from cupy.cuda.memory import MemoryPointer, UnownedMemory, alloc
from cupy.cuda.stream import Event, get_current_stream

_CUDA, _MANAGED, _CPU = 2, 13, 1  # DLDeviceType


class ndarray:  # noqa: N801
    """An array in device memory."""

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ) -> None:
        self.shape: tuple[int, ...] = tuple(shape) if isinstance(shape, (tuple, list)) else (machine.integer(shape),)
        self.dtype = np.dtype(dtype)
        if memptr is not None and not isinstance(memptr, MemoryPointer):
            raise TypeError(f"Cannot convert {type(memptr).__name__} to cupy.cuda.memory.MemoryPointer")
        self.data = alloc(self.nbytes) if memptr is None else memptr
        self.strides: tuple[int, ...] = (
            tuple(strides) if strides is not None else _strides(self.shape, self.dtype, order)
        )

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> Any:
        return self.data.device

    @property
    def flags(self) -> Any:
        """The flags of a numpy array with the same shape and strides."""
        return self._host().flags

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def _host(self) -> np.ndarray[Any, Any]:
        """Return numpy's view of the memory, now."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        desc = {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.itemsize}",
            "data": (self.data.ptr, False),
            "version": 3,
        }
        return np.asarray(type("_Memory", (), {"__array_interface__": desc})()).view(self.dtype)

    # Views and copies -------------------------------------------------------------------------------------------------

    def _viewed(self, host: np.ndarray[Any, Any]) -> ndarray:
        offset = host.__array_interface__["data"][0] - self.data.ptr if self.size else 0
        return ndarray(host.shape, host.dtype, self.data + offset, host.strides)

    def view(self, dtype: Any = None) -> ndarray:
        return self._viewed(self._host().view(self.dtype if dtype is None else np.dtype(dtype)))

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        host = self._host()
        formed = host.reshape(*shape, order=order)  # type: ignore[call-overload]
        if not self.size or np.shares_memory(host, formed):
            return self._viewed(formed)
        return self.copy().reshape(*shape, order=order)

    def ravel(self, order: str = "C") -> ndarray:
        return self.reshape(-1, order=order)

    def __getitem__(self, index: Any) -> ndarray:
        """Return a part, by integers and slices."""
        part = self._host()[index if isinstance(index, tuple) else (index,)]
        if not isinstance(part, np.ndarray):
            part = self._host()[index : index + 1].reshape(())
        return self._viewed(part)

    def __setitem__(self, index: Any, value: ndarray) -> None:
        """Copy a whole array of the same shape and type, on the current stream."""
        if index is not Ellipsis or (value.shape, value.dtype) != (self.shape, self.dtype):
            raise NotImplementedError(f"[{index!r}] = {value!r}")
        if not self.size:
            return
        target, source = self._host(), value._host()
        (low, high), (first, last) = np.lib.array_utils.byte_bounds(target), np.lib.array_utils.byte_bounds(source)
        record("elementwise_copy", get_current_stream().ptr)
        streams.stream_of(get_current_stream().ptr).queue(
            Operation(
                "an elementwise copy",
                lambda: lambda: np.copyto(target, source),
                reads=[(first, last - first)],
                writes=[(low, high - low)],
            )
        )

    def copy(self, order: str = "C") -> ndarray:
        """Return a contiguous copy, made on the current stream."""
        return _upload(self._get(get_current_stream().ptr), self.dtype)

    def get(self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True) -> np.ndarray[Any, Any]:
        """Return a copy in host memory, made on `stream` or the current one."""
        result = self._get(get_current_stream().ptr if stream is None else stream.ptr)
        if out is None:
            return result
        out[...] = result
        return np.asarray(out)

    def set(self, arr: np.ndarray[Any, Any], stream: Any = None) -> None:
        """Copy from host memory, on `stream` or the current one."""
        if not self.flags.c_contiguous or arr.shape != self.shape or arr.dtype != self.dtype:
            raise ValueError("the arrays differ in form or type")
        _copy_up(self, arr, get_current_stream().ptr if stream is None else stream.ptr)

    def _get(self, stream: int) -> np.ndarray[Any, Any]:
        if not self.size:
            return np.empty(self.shape, self.dtype)
        host = self._host()
        low, high = np.lib.array_utils.byte_bounds(host)
        room = np.empty(high - low, np.uint8)
        _queue("a copy to the host", room.ctypes.data, low, high - low, stream, reads=[(low, high - low)])
        runtime.streamSynchronize(stream)
        offset = self.data.ptr - low
        return np.ndarray(self.shape, self.dtype, room, offset, self.strides).copy()

    # Exchange ---------------------------------------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "stream": get_current_stream().ptr or runtime.streamLegacy,
            "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
        }

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """Return a capsule that says that the memory is the host's, as it is."""
        if copy:
            raise BufferError("copy=True only supported for copy to CPU.")
        consumer = runtime.streamLegacy if stream is None else machine.integer(stream)
        current = get_current_stream()
        if consumer < -1:
            raise ValueError(
                "On CUDA, the valid stream for the DLPack protocol is -1, 1, 2, or any larger value, "
                f"but {stream} was provided"
            )
        if consumer >= 0 and consumer != (current.ptr or runtime.streamLegacy):
            event = Event()
            runtime.eventRecord(event.ptr, current.ptr)
            runtime.streamWaitEvent(consumer, event.ptr)
        host = self._host()
        kept = np.asarray(_Kept(host, self))
        return kept.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.data.device_id


class _Kept:
    """Memory in a form that numpy takes, which keeps its owner alive."""

    def __init__(self, host: np.ndarray[Any, Any], owner: Any) -> None:
        self.__array_interface__ = host.__array_interface__
        self._owner = owner


def _strides(shape: tuple[int, ...], dtype: np.dtype[Any], order: str) -> tuple[int, ...]:
    strides, step = [], dtype.itemsize
    for length in reversed(shape) if order == "C" else shape:
        strides.append(step)
        step *= max(1, length)
    return tuple(reversed(strides)) if order == "C" else tuple(strides)


def _upload(host: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> ndarray:
    array = ndarray(host.shape, dtype)
    _copy_up(array, np.ascontiguousarray(host, dtype), get_current_stream().ptr)
    return array


def _copy_up(array: ndarray, host: np.ndarray[Any, Any], stream: int) -> None:
    """Copy from pageable memory, which CUDA has read when the call returns."""
    if not array.size:
        return
    staged = np.array(host, copy=True, order="C")
    where = array.data.ptr, array.nbytes
    _queue("a copy from the host", where[0], staged.ctypes.data, where[1], stream, writes=[where], keep=staged)


def _queue(name: str, target: int, source: int, nbytes: int, stream: int, keep: Any = None, **ranges: Any) -> None:
    record("memcpyAsync", stream, target=target, source=source, nbytes=nbytes)

    def copy(keep: Any = keep) -> None:
        blocks.move(target, source, nbytes)

    streams.stream_of(stream).queue(Operation(name, lambda: copy, **ranges))


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Return an uninitialised array."""
    return ndarray(shape, dtype, order=order)


def asarray(a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, blocking: bool = False) -> ndarray:
    """Return an array with the content of `a`; no copy if that is on the device already."""
    record("asarray", get_current_stream().ptr)
    if not isinstance(a, ndarray) and hasattr(a, "__cuda_array_interface__"):
        a = _from_interface(a)
    if isinstance(a, ndarray):
        if dtype is not None and np.dtype(dtype) != a.dtype:
            return _upload(a.get().astype(dtype), np.dtype(dtype))
        return a.copy() if copy else a
    host = np.asarray(a, dtype)
    return _upload(host, host.dtype)


def _from_interface(a: Any) -> ndarray:
    desc = a.__cuda_array_interface__
    dtype, shape, strides = np.dtype(desc["typestr"]), desc["shape"], desc.get("strides")
    if strides is None:
        nbytes = math.prod(shape) * dtype.itemsize
    else:
        nbytes = max(
            (abs(count * stride) for count, stride in zip(shape, strides, strict=True)), default=dtype.itemsize
        )
    memory = UnownedMemory(desc["data"][0], nbytes, a, runtime.getDevice())
    if desc.get("stream") is not None:
        runtime.streamSynchronize(desc["stream"])
    return ndarray(shape, dtype, MemoryPointer(memory, 0), strides)


class _Capsule:
    """An object with a DLPack capsule that numpy imports from."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **kwargs: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


def from_dlpack(array: Any, *, device: Any = None, copy: Any = None) -> ndarray:
    """Return an array over another library's memory."""
    if device is not None:
        raise NotImplementedError("from_dlpack() does not support device yet.")
    kind, index = array.__dlpack_device__()
    if kind == _CPU:
        raise TypeError(
            "CPU arrays cannot be directly imported to CuPy. Use `cupy.array(numpy.from_dlpack(input))` instead."
        )
    if kind not in (_CUDA, _MANAGED):
        raise TypeError(f"Unsupported array type: {kind}")
    stream = get_current_stream().ptr or runtime.streamLegacy
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 3), copy=copy)
    except TypeError:
        if copy is not None:
            raise
        capsule = array.__dlpack__(stream=stream)
    host = np.from_dlpack(_Capsule(capsule))
    memory = UnownedMemory(host.__array_interface__["data"][0], host.nbytes, host, index)
    return ndarray(host.shape, host.dtype, MemoryPointer(memory, 0), host.strides)


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    """Return a copy in host memory."""
    if not isinstance(a, ndarray) and hasattr(a, "__cuda_array_interface__"):
        a = _from_interface(a)
    if isinstance(a, ndarray):
        return a.get(stream=stream, order=order, out=out, blocking=blocking)
    return np.asarray(a)
