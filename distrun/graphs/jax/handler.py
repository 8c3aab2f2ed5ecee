"""The handler that XLA calls to execute a collective of a compiled program, in place in XLA's memory.

The collective is encoded in the program as a text, so that a program from a compilation cache is valid in every
process. The text is decoded once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from distrun.graphs.jax import ffi
from distrun.graphs.jax.arrays import perform_evenly
from distrun.graphs.jax.shapes import PROBE, REDUCING, Shape, result_shape
from distrun.graphs.prepared import Flat, prepare, storage_of
from distrun.runtime.collectives.call import Call
from distrun.runtime.world import world

TARGET = "distrun_collective"
"""The handler's name in programs."""


def encode(collective: Call, dtypes: Sequence[str], shapes: Sequence[Shape]) -> str:
    """Return the text for a collective on arrays of these element types and shapes."""
    return json.dumps([collective.encode(), list(dtypes), list(shapes)])


def register() -> None:
    """Register the handler with XLA, for programs that run on the CPU."""
    ffi.api_version()  # raises an error now, not when XLA asks for the version
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handler), platform="cpu")


def handle(address: int, run: Callable[[ffi.Frame], None]) -> Any:
    """Answer a call of XLA with the frame at `address`: `run` it, if it is for execution, and return None or an
    error."""
    frame = ffi.Frame(address)
    if not frame.is_execution():
        return None
    try:
        run(frame)
    except BaseException as error:
        return frame.error(f"{type(error).__name__}: {error}")
    return None


@ffi.HANDLER
def _handler(address: int) -> Any:
    return handle(address, _run)


def _run(frame: ffi.Frame) -> None:
    operation = _decode(frame.text())
    operation.run(frame.arguments(operation.count), frame.results(operation.count))


class _Reducing:
    """Executes an allreduce or a broadcast. XLA gives results the memory of their arguments if possible."""

    def __init__(self, collective: Call, dtypes: Sequence[str], shapes: Sequence[Shape]) -> None:
        self._prepared = prepare(collective, tuple(dtypes), tuple(shapes))
        self._arrays = [(storage_of(dtype), math.prod(shape)) for dtype, shape in zip(dtypes, shapes, strict=True)]
        self.count = len(shapes)

    def run(self, arguments: Sequence[int], results: Sequence[int]) -> None:
        inputs = self._views(arguments)
        self._prepared.reduce(inputs, inputs if arguments == results else self._views(results))

    def _views(self, addresses: Sequence[int]) -> list[Flat]:
        return [_view(address, *array) for address, array in zip(addresses, self._arrays, strict=True)]


class _Allgather:
    """Executes an allgather, alltoall or reducescatter."""

    def __init__(self, collective: Call, dtypes: Sequence[str], shapes: Sequence[Shape]) -> None:
        self._collective = collective
        self._dtypes = [jnp.dtype(dtype) for dtype in dtypes]
        self._shapes = shapes
        self._result_shapes = [result_shape(collective, shape) for shape in shapes]
        self.count = len(shapes)

    def run(self, arguments: Sequence[int], results: Sequence[int]) -> None:
        inputs = self._views(arguments, self._shapes)
        outputs = self._views(results, self._result_shapes)
        for output, result in zip(outputs, perform_evenly(self._collective, inputs), strict=True):
            output[...] = result

    def _views(self, addresses: Sequence[int], shapes: Sequence[Shape]) -> list[NDArray[Any]]:
        return [
            _view(address, dtype, math.prod(shape)).reshape(shape)
            for address, dtype, shape in zip(addresses, self._dtypes, shapes, strict=True)
        ]


class _Probing(_Reducing):
    """Executes a `PROBE`."""

    def run(self, arguments: Sequence[int], results: Sequence[int]) -> None:
        for argument, result in zip(self._views(arguments), self._views(results), strict=True):
            np.multiply(argument, 2, out=result)


def _view(address: int, dtype: np.dtype[Any], count: int) -> Flat:
    return np.frombuffer(ffi.memory(address, count * dtype.itemsize), dtype) if count else np.empty(0, dtype)


def decode(text: bytes) -> tuple[Call, list[str], list[Shape]]:
    """Return what `encode` has encoded."""
    encoded, dtypes, shapes = json.loads(text)
    return Call.decode(encoded), dtypes, [tuple(shape) for shape in shapes]


@lru_cache(maxsize=4096)
def _decode(text: bytes) -> _Reducing | _Allgather:
    return on_host(*decode(text))


def on_host(collective: Call, dtypes: Sequence[str], shapes: Sequence[Shape]) -> _Reducing | _Allgather:
    """Return the operation that executes a collective on memory of the host, given addresses."""
    kind = _Probing if collective.kind == PROBE else _Reducing if collective.kind in REDUCING else _Allgather
    return kind(collective, dtypes, shapes)


world.on_leaving(_decode.cache_clear)
