"""Arrays on this rank's GPU: wraps cupy and foreign arrays in buffers, and returns results as cupy arrays.

A foreign array is any object with `__dlpack__` or `__cuda_array_interface__`: a CUDA tensor of torch, a JAX array, a
device array of numba. If its owner has queued work on another stream, the device waits for it. An operation starts
after the work on cupy's current stream, and its result may be used on that stream.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distrun.errors import UsageError
from distrun.runtime.gpu.buffers import Borrowed, DeviceBuffer
from distrun.runtime.gpu.driver import Driver, Event
from distrun.runtime.operations import dtypes

_CUDA = 2  # kDLCUDA, the device type in DLPack
_LEGACY = 1  # cudaStreamLegacy: another name of stream 0
_PER_THREAD = 2  # cudaStreamPerThread
_READ_ONLY_FLAG = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_FLAGS_OFFSET = 24  # bytes before `flags` in DLManagedTensorVersioned: the version, the manager's context, the deleter
_VERSIONED = b"dltensor_versioned"


def is_on_gpu(tensor: Any) -> bool:
    """Return whether `tensor` is an array on an NVIDIA GPU. This is cheap and imports nothing.

    TensorFlow's tensors do not count: they do not expose their streams, and `numpy.asarray` copies them to the host.
    """
    if isinstance(tensor, np.ndarray):
        return False
    if not hasattr(tensor, "__dlpack_device__"):
        return hasattr(tensor, "__cuda_array_interface__")
    # For a CPU tensor of torch, __dlpack_device__ would initialise CUDA to find out whether the memory is page-locked.
    if getattr(getattr(tensor, "device", None), "type", None) == "cpu":
        return False
    try:
        kind, _ = tensor.__dlpack_device__()
    except Exception:  # for example of an array on several devices, which numpy may be able to convert
        return False
    return bool(kind == _CUDA) and not type(tensor).__module__.startswith("tensorflow.")


@dataclass(frozen=True, slots=True, eq=False)
class GpuArray:
    """An array on this rank's GPU: the object that the caller passed, and its memory as a cupy array."""

    given: Any
    array: Any
    stream: int | None = None
    """The stream of a foreign array, if its owner exposes it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements. bfloat16 is the type of ml_dtypes."""
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    @property
    def is_foreign(self) -> bool:
        """Whether the array is not cupy's: its owner does not follow cupy's current stream."""
        return self.given is not self.array

    def flat(self) -> tuple[DeviceBuffer, str]:
        """Return the elements as a buffer, and the name of their type.

        The buffer is the array's own memory if that is contiguous, else a copy.

        Raises:
            UsageError: distrun cannot move elements of this type.
        """
        array = owner = self._stored()
        if not array.flags.c_contiguous:
            array = owner = array.copy()
        elif self.is_foreign:
            owner = Borrowed(array)
        return DeviceBuffer(array.data.ptr, array.size, array.dtype, owner), dtypes.name_of(self.dtype)

    def write_back(self, buffer: DeviceBuffer) -> None:
        """Queue a copy of the buffer that `flat` returned back into the array, if that buffer was a copy."""
        array = self._stored()
        if not array.flags.c_contiguous:
            array[...] = buffer.owner

    def _stored(self) -> Any:
        """Return the array viewed as its storage type."""
        return self.array.view(np.uint16) if dtypes.name_of(self.dtype) == dtypes.BFLOAT16 else self.array

    def hand_back(self, driver: Driver, event: Event) -> None:
        """Make the owner of a foreign array wait for `event`, after which it is written.

        Its stream waits if it is known, else the host.
        """
        if self.stream is None:
            driver.synchronize(event)
        else:
            driver.wait(self.stream, event)


def gpu_array(tensor: Any, driver: Driver, in_place: bool = False) -> GpuArray:
    """Return `tensor` as an array that may be used on cupy's current stream.

    Raises:
        UsageError: the array lies on another GPU, cannot be shared, or is read-only although `in_place` is set.
    """
    stream = None
    with driver.use:
        if isinstance(tensor, driver.cupy.ndarray):
            array, is_read_only = tensor, False
            _check_index(tensor, array.data.device_id, driver)
        elif hasattr(tensor, "__dlpack__"):
            array, is_read_only = _from_dlpack(tensor, driver)
        else:
            array, is_read_only, stream = _from_interface(tensor, driver)
    if in_place and is_read_only:
        raise UsageError(
            f"an in-place operation needs a writable array, and this {_kind(tensor)} is read-only: use the form "
            "without _"
        )
    return GpuArray(tensor, array, stream)


def _kind(tensor: Any) -> str:
    return f"{type(tensor).__module__.partition('.')[0]} {type(tensor).__name__}"


def _check_index(tensor: Any, index: int, driver: Driver) -> None:
    if index != driver.index:
        raise UsageError(
            f"this {_kind(tensor)} is on GPU {index}, but this rank's GPU is {driver.index}: make it there; for cupy, "
            f"call cupy.cuda.Device({driver.index}).use() before"
        )


def _unshared(tensor: Any, error: Exception) -> UsageError:
    return UsageError(f"this {_kind(tensor)} on a GPU cannot be shared with cupy: {error}")


class _DLPackExporter:
    """Wraps an object that exports by DLPack, to find out from its capsule whether the memory is read-only."""

    is_read_only = False

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._tensor.__dlpack__(**options)
        self.is_read_only = _is_read_only(capsule)
        return capsule


def _from_dlpack(tensor: Any, driver: Driver) -> tuple[Any, bool]:
    """Return a cupy array over the memory of `tensor`, and whether it is read-only.

    cupy makes its current stream wait for the owner's stream.
    """
    _check_index(tensor, tensor.__dlpack_device__()[1], driver)
    exported = _DLPackExporter(tensor)
    try:
        array = driver.cupy.from_dlpack(exported)
    except NotImplementedError:
        raise UsageError("bfloat16 arrays on a GPU need ml_dtypes: pip install 'distrun[bfloat16]'") from None
    except (
        BufferError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:  # torch refuses tensors that require grad, for example
        raise _unshared(tensor, error) from None
    jax = sys.modules.get("jax")  # JAX's arrays are immutable, but their capsules are not flagged
    return array, exported.is_read_only or (jax is not None and isinstance(tensor, jax.Array))


def _is_read_only(capsule: Any) -> bool:
    """Return whether a DLPack 1 capsule is flagged as read-only. Older capsules have no flags."""
    api = ctypes.pythonapi
    name, pointer = api.PyCapsule_GetName, api.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if name(capsule) != _VERSIONED:
        return False
    return bool(ctypes.c_uint64.from_address(pointer(capsule, _VERSIONED) + _FLAGS_OFFSET).value & _READ_ONLY_FLAG)


class _WithoutStream:
    """Wraps an object with a `__cuda_array_interface__` without its stream, for which cupy would block the host."""

    def __init__(self, tensor: Any, interface: dict[str, Any]) -> None:
        self._tensor = tensor  # keeps the memory alive
        self.__cuda_array_interface__ = {**interface, "stream": None}


def _from_interface(tensor: Any, driver: Driver) -> tuple[Any, bool, int | None]:
    """Return a cupy array over the memory of `tensor`, whether it is read-only, and the owner's stream.

    cupy's current stream is made to wait for the owner's.
    """
    interface = tensor.__cuda_array_interface__
    try:
        array = driver.cupy.asarray(_WithoutStream(tensor, interface))
    except (RuntimeError, TypeError, ValueError) as error:
        raise _unshared(tensor, error) from None
    _check_index(tensor, array.data.device_id, driver)
    stream = interface.get("stream")
    current = CupyArena(driver).current_stream()
    if stream is not None and stream != (current or _LEGACY):
        driver.wait(current, driver.record(stream))
    return array, bool(interface["data"][1]), stream


class CupyArena:
    """The `Arena` of cupy's memory and streams."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # Streams that have been current, kept alive for operations that wait for them: cupy destroys a stream with its
        # last reference.
        self._streams: dict[int, Any] = {}

    def current_stream(self) -> int:
        """Return cupy's current stream on this rank's GPU in this thread.

        Raises:
            UsageError: it is the per-thread default stream, whose address means another stream in every thread.
        """
        stream = self._driver.cupy.cuda.get_current_stream(self._driver.index)
        pointer = int(stream.ptr)
        if pointer == _PER_THREAD:
            raise UsageError(
                "cupy's current stream is the thread's own default stream, which distrun's thread cannot wait for: "
                "unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM, or make a stream current (with "
                "cupy.cuda.Stream(non_blocking=True):)"
            )
        self._streams[pointer] = stream
        return pointer

    def empty(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Return uninitialised memory from cupy's pool, for use on `stream`."""
        return self._driver.allocate(count, dtype, stream)


def cupy_array(driver: Driver, buffer: DeviceBuffer, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Return `buffer` as a cupy array of this shape and dtype, which keeps the memory alive."""
    cuda = driver.cupy.cuda
    memory = cuda.UnownedMemory(buffer.pointer, buffer.nbytes, buffer, driver.index)
    return driver.cupy.ndarray(tuple(shape), dtype, cuda.MemoryPointer(memory, 0))
