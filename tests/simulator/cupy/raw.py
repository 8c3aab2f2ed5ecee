"""Kernels from source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from simulator import blocks, machine, streams
from simulator.errors import INVALID_VALUE, CUDARuntimeError
from simulator.kernels import Kernel, compile_kernel
from simulator.recorder import record
from simulator.streams import Operation

from cupy.arrays import ndarray
from cupy.cuda.memory import MemoryPointer
from cupy.cuda.stream import get_current_stream

_MOST_THREADS = 1024
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)


def _argument(value: Any) -> np.ndarray[Any, Any]:
    """Return a kernel's argument by value, as cupy makes it: an array of one element."""
    if value is None:
        return np.zeros(1, np.int64)
    if isinstance(value, ndarray):
        return np.array([value.data.ptr], np.uint64)
    if isinstance(value, MemoryPointer):
        return np.array([value.ptr], np.uint64)
    if isinstance(value, np.ndarray):
        if value.size == 1:
            return value.copy()
        raise TypeError(
            f"You are trying to pass a numpy.ndarray of shape {value.shape} as a kernel parameter. Only numpy.ndarrays "
            "of size one can be passed by value. If you meant to pass a pointer to __global__ memory, you need to pass "
            "a cupy.ndarray instead."
        )
    if type(value) is bool:
        return np.array([value])
    if type(value) is float:
        return np.array([value])
    if type(value) is complex:
        return np.array([value])
    if type(value) is int:
        return np.array([value], np.uint64 if value >= 1 << 63 else np.int64)
    if isinstance(value, np.generic):
        return np.array([value], value.dtype)
    raise TypeError(f"Unsupported type {type(value)}")


class RawKernel:
    """A kernel, compiled when it is first called."""

    def __init__(
        self,
        code: str,
        name: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: Any = None,
    ) -> None:
        for argument, kind in ((code, str), (name, str), (options, tuple), (backend, str)):
            if not isinstance(argument, kind):
                raise TypeError(f"expected {kind.__name__}, got {type(argument).__name__}")
        self.code, self.name, self.options, self.backend = code, name, options, backend
        self._compiled: Kernel | None = None

    def compile(self, log_stream: Any = None) -> None:
        self._compiled = compile_kernel(self.code, self.name, self.options)

    def __call__(self, grid: Any, block: Any, args: Sequence[Any], **kwargs: Any) -> None:
        stream, shared = kwargs.pop("stream", None), kwargs.pop("shared_mem", 0)
        if kwargs or shared:
            raise TypeError(
                f"the simulated GPU knows no {', '.join([*kwargs, *(['shared memory'] if shared else [])])}"
            )
        for size in (grid, block):
            if not isinstance(size, tuple):
                raise TypeError(f"expected tuple, got {type(size).__name__}")
        handle = get_current_stream().ptr if stream is None else stream.ptr
        arguments = [_argument(each) for each in args]
        record("RawKernel", handle, kernel=self.name, grid=grid, block=block)
        blocks_of_it, threads = _three(grid), _three(block)
        if threads[0] * threads[1] * threads[2] > _MOST_THREADS or any(
            size > most for size, most in zip(blocks_of_it, _MOST_BLOCKS, strict=True)
        ):
            raise CUDARuntimeError(INVALID_VALUE)
        machine.touch()
        if self._compiled is None:
            self.compile()
        compiled = self._compiled
        assert compiled is not None
        compiled.check(self.name, arguments)
        streams.stream_of(handle).queue(
            Operation(
                f"kernel {self.name}",
                lambda: lambda: compiled.run(blocks_of_it, threads, arguments),
                others=blocks.referred(arguments),
            )
        )


def _three(size: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(max(1, machine.integer(each)) for each in (*size, 1, 1)[:3])
