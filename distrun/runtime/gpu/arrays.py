"""Arrays on this rank's GPU: how those of cupy, and of others through cupy, become buffers, and results become cupy arrays.

Others are what shows itself by `__dlpack__` or `__cuda_array_interface__`: CUDA tensors of torch, JAX arrays, numba's device
arrays. What their owner has queued on its stream is waited for on the device. cupy's current stream is where an operation
starts from, and where its result can be used.
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
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
_FLAGS = 24  # bytes before `flags` in DLManagedTensorVersioned: the version, the manager's context, the deleter
_VERSIONED = b"dltensor_versioned"


def is_on_gpu(tensor: Any) -> bool:
    """Whether this is an array on an NVIDIA GPU; cheap, and imports nothing.

    TensorFlow's tensors are not meant: they show no order of streams, and are copied to the host by `numpy.asarray`.
    """
    if isinstance(tensor, np.ndarray):
        return False
    if not hasattr(tensor, "__dlpack_device__"):
        return hasattr(tensor, "__cuda_array_interface__")
    if (
        getattr(getattr(tensor, "device", None), "type", None) == "cpu"
    ):  # of torch, which would ask CUDA if it is page-locked
        return False
    try:
        kind, _ = tensor.__dlpack_device__()
    except Exception:  # one that lies on several devices, say: numpy may know what to do with it
        return False
    return bool(kind == _CUDA) and not type(tensor).__module__.startswith("tensorflow.")


@dataclass(frozen=True, slots=True, eq=False)
class GpuArray:
    """An array on this rank's GPU: what the caller gave, and the same memory as a cupy array."""

    given: Any
    array: Any
    stream: int | None = None
    """The stream that the owner of a foreign array uses it on, if it has told."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the elements are; bfloat16 is that of ml_dtypes."""
        dtype: np.dtype[Any] = self.array.dtype
        return dtype

    @property
    def is_foreign(self) -> bool:
        """Whether it is not cupy's, whose current stream it therefore does not follow."""
        return self.given is not self.array

    def flat(self) -> tuple[DeviceBuffer, str]:
        """The elements as a buffer, and their type's name: the array's own memory where it is contiguous, else a copy.

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
        """Queue a copy of what `flat` gave into the array, if that was a copy."""
        array = self._stored()
        if not array.flags.c_contiguous:
            array[...] = buffer.owner

    def _stored(self) -> Any:
        """The array with elements of a storage type."""
        return self.array.view(np.uint16) if dtypes.name_of(self.dtype) == dtypes.BFLOAT16 else self.array

    def hand_back(self, driver: Driver, event: Event) -> None:
        """Let the owner of a foreign array that was written to go on after `event`; the host waits if it cannot be told."""
        if self.stream is None:
            driver.synchronize(event)
        else:
            driver.wait(self.stream, event)


def gpu_array(tensor: Any, driver: Driver, in_place: bool = False) -> GpuArray:
    """An array on the GPU, which can be used on cupy's current stream.

    Raises:
        UsageError: it lies on another GPU, cannot be shared, or is read-only and to be worked on in place.
    """
    stream = None
    with driver.use():
        if isinstance(tensor, driver.cupy.ndarray):
            array, is_read_only = tensor, False
            _check_index(tensor, array.data.device_id, driver)
        elif hasattr(tensor, "__dlpack__"):
            array, is_read_only = _from_dlpack(tensor, driver)
        else:
            array, is_read_only, stream = _from_interface(tensor, driver)
    if in_place and is_read_only:
        raise UsageError(
            f"an in-place operation needs a writable array, and this {_kind(tensor)} is read-only: use the form without _"
        )
    return GpuArray(tensor, array, stream)


def _kind(tensor: Any) -> str:
    return f"{type(tensor).__module__.partition('.')[0]} {type(tensor).__name__}"


def _check_index(tensor: Any, index: int, driver: Driver) -> None:
    if index != driver.index:
        raise UsageError(
            f"this {_kind(tensor)} is on GPU {index}, but this rank's GPU is {driver.index}: make it there; for cupy, call "
            f"cupy.cuda.Device({driver.index}).use() before"
        )


def _unshared(tensor: Any, error: Exception) -> UsageError:
    return UsageError(f"this {_kind(tensor)} on a GPU cannot be shared with cupy: {error}")


class _Exported:
    """An object that exports by DLPack, as cupy is to see it."""

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
    """A cupy array over the memory, and whether it is read-only; cupy has its current stream wait for the owner's."""
    _check_index(tensor, tensor.__dlpack_device__()[1], driver)
    exported = _Exported(tensor)
    try:
        array = driver.cupy.from_dlpack(exported)
    except NotImplementedError:
        raise UsageError("bfloat16 arrays on a GPU need ml_dtypes: pip install 'distrun[bfloat16]'") from None
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # torch: tensors that require grad, for one
        raise _unshared(tensor, error) from None
    jax = sys.modules.get("jax")  # its arrays are read-only, which they do not say by DLPack
    return array, exported.is_read_only or (jax is not None and isinstance(tensor, jax.Array))


def _is_read_only(capsule: Any) -> bool:
    """Whether a capsule of DLPack 1 says so; older ones cannot."""
    api = ctypes.pythonapi
    name, pointer = api.PyCapsule_GetName, api.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if name(capsule) != _VERSIONED:
        return False
    return bool(ctypes.c_uint64.from_address(pointer(capsule, _VERSIONED) + _FLAGS).value & _READ_ONLY)


class _Shown:
    """An object that shows a `__cuda_array_interface__`, without a stream: cupy would have the host wait for that."""

    def __init__(self, tensor: Any, interface: dict[str, Any]) -> None:
        self._tensor = tensor  # keeps the memory alive
        self.__cuda_array_interface__ = {**interface, "stream": None}


def _from_interface(tensor: Any, driver: Driver) -> tuple[Any, bool, int | None]:
    """A cupy array over the memory, whether it is read-only, and the owner's stream, for which cupy's current one waits."""
    interface = tensor.__cuda_array_interface__
    try:
        array = driver.cupy.asarray(_Shown(tensor, interface))
    except (RuntimeError, TypeError, ValueError) as error:
        raise _unshared(tensor, error) from None
    _check_index(tensor, array.data.device_id, driver)
    stream = interface.get("stream")
    current = CupyArena(driver).current_stream()
    if stream is not None and stream != (current or _LEGACY):
        driver.wait(current, driver.record(stream))
    return array, bool(interface["data"][1]), stream


class CupyArena:
    """cupy's memory and streams; an `Arena`."""

    def __init__(self, driver: Driver) -> None:
        self._progress_thread = driver
        self._streams: dict[int, Any] = {}  # which have been current: cupy destroys a stream that nobody keeps

    def current_stream(self) -> int:
        """cupy's current stream of the calling thread, on this rank's GPU.

        Raises:
            UsageError: it is the thread's default stream, which has the same address in all threads.
        """
        stream = self._progress_thread.cupy.cuda.get_current_stream(self._progress_thread.index)
        pointer = int(stream.ptr)
        if pointer == _PER_THREAD:
            raise UsageError(
                "cupy's current stream is the thread's own default stream, which distrun's thread cannot wait for: unset "
                "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM, or make a stream current (with cupy.cuda.Stream(non_blocking=True):)"
            )
        self._streams[pointer] = stream
        return pointer

    def empty(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Uninitialised memory from cupy's pool, for use on `stream`."""
        return self._progress_thread.allocate(count, dtype, stream)


def cupy_array(driver: Driver, buffer: DeviceBuffer, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """A buffer as a cupy array of this shape and type, which keeps the memory alive."""
    cuda = driver.cupy.cuda
    memory = cuda.UnownedMemory(buffer.pointer, buffer.nbytes, buffer, driver.index)
    return driver.cupy.ndarray(tuple(shape), dtype, cuda.MemoryPointer(memory, 0))
