"""The handler that XLA calls to execute a collective of a program on a GPU, in order with the stream of the call.

The operation begins after the work that XLA has queued on this stream, and the stream waits for its end, so XLA may use
or free the memory as after any kernel of its own. The host waits only until the other ranks have come to the collective
as well, in the thread where XLA runs the program. What NCCL cannot do is staged, as for any tensor on a GPU. What only
the host can compute, PowerSGD and error feedback, is computed there, between two copies.

XLA must not put the calls into a CUDA graph, and does not, since `ffi` declares no traits.

Concrete arrays are reduced by the same operations (`reduce`), and there the host waits for the device as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrun.errors import CollectiveError, MismatchError, UsageError
from distrun.graphs import residuals as residuals
from distrun.graphs.jax import ffi, handler
from distrun.graphs.jax.arrays import check_even
from distrun.graphs.jax.shapes import PROBE, REDUCING, Shape, result_shape
from distrun.graphs.prepared import storage_of
from distrun.runtime.collectives.call import Call, row_size, rows_in, rows_per_rank
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.gpu import Gpu
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.operations.dtypes import name_of
from distrun.runtime.operations.request import CUDA, Request, title
from distrun.runtime.world import world
from distrun.tensor_fusion.device_packing import Piece
from distrun.tensor_fusion.low_rank import rank_of

Addresses = Sequence[int]
_LEGACY = 0  # the default stream of CUDA


def register() -> None:
    """Register the handler with XLA, for programs that run on an NVIDIA GPU."""
    jax.ffi.register_ffi_target(handler.TARGET, jax.ffi.pycapsule(HANDLER), platform="CUDA")


@ffi.HANDLER
def HANDLER(address: int) -> Any:  # noqa: N802
    """The function that XLA calls."""
    return handler.handle(address, _run)


def _run(frame: ffi.Frame) -> None:
    operation = _decode(frame.text())
    operation.run(frame.stream(), frame.arguments(operation.count), frame.results(operation.count))


class _Arena:
    """The `Arena` of one call: XLA's stream, and XLA's memory for the results that are allocated, in their order."""

    def __init__(self, driver: Driver, stream: int, results: Sequence[DeviceBuffer] = ()) -> None:
        self._driver = driver
        self._stream = stream
        self._results = iter(results)

    def current_stream(self) -> int:
        return self._stream

    def empty(self, count: int, dtype: np.dtype[Any], stream: int) -> DeviceBuffer:
        """Return the next result or, if it has another size, memory from cupy's pool."""
        result = next(self._results, None)
        if result is not None and result.size == count and result.dtype == dtype:
            return result
        return self._driver.allocate(count, dtype, stream)


class Queued:
    """A collective that is queued on the GPU, in XLA's own memory."""

    def __init__(self, collective: Call, dtypes: Sequence[str], shapes: Sequence[Shape]) -> None:
        self._collective = collective
        self._dtypes = dtypes
        self.shapes = shapes, [result_shape(collective, shape) for shape in shapes]
        """The shapes of the arguments and of the results."""
        self.storage = [storage_of(dtype) for dtype in dtypes]
        """The storage types of both."""
        self.count = len(shapes)
        places: dict[str, list[int]] = {}
        for place, dtype in enumerate(dtypes):
            places.setdefault(dtype, []).append(place)
        self._groups: list[tuple[Request, list[int]]] = []
        if collective.kind != PROBE:
            for number, (dtype, group) in enumerate(places.items()):
                call = collective.named(dtype) if number else collective
                self._groups.append((call.request(dtype, tuple([shapes[place] for place in group]), CUDA), group))

    def run(self, stream: int, arguments: Addresses, results: Addresses) -> None:
        """Queue the operation after the work on `stream`, which is made to wait for its end."""
        gpu = world.engine().gpu()
        with gpu.driver.use:
            if gpu.driver.is_capturing(stream):
                raise UsageError("XLA captures a CUDA graph, which cannot contain collectives of distrun")
        inputs, outputs = map(self._buffers, (arguments, results), self.shapes)
        if self._collective.kind == PROBE:
            self._double(gpu, stream, inputs, outputs)
        for request, places in self._groups:
            given, taken = [inputs[place] for place in places], [outputs[place] for place in places]
            if request.kind in REDUCING:
                self._reduce(gpu, stream, request, given, taken)
            else:
                self._move_rows(gpu, stream, request, places, given, taken)

    def _buffers(self, addresses: Addresses, shapes: Sequence[Shape]) -> list[DeviceBuffer]:
        return [
            DeviceBuffer(address, math.prod(shape), dtype)
            for address, shape, dtype in zip(addresses, shapes, self.storage, strict=True)
        ]

    def _double(self, gpu: Gpu, stream: int, inputs: Sequence[DeviceBuffer], outputs: Sequence[DeviceBuffer]) -> None:
        with gpu.driver.use:
            for dtype, given, taken in zip(self._dtypes, inputs, outputs, strict=True):
                gpu.packer.copy([Piece(given.pointer, taken.pointer, given.size)], dtype, dtype, 2.0, stream)

    def _reduce(
        self, gpu: Gpu, stream: int, request: Request, given: list[DeviceBuffer], taken: list[DeviceBuffer]
    ) -> None:
        if request.kind == "broadcast":
            if world.rank() == request.root:
                with gpu.driver.use:
                    for source, target in zip(given, taken, strict=True):
                        gpu.driver.copy(target.pointer, source.pointer, source.nbytes, stream)
            given = []
        self._complete(gpu, DeviceHandle(world.engine(), request, given, taken, arena=_Arena(gpu.driver, stream)))

    def _move_rows(
        self,
        gpu: Gpu,
        stream: int,
        request: Request,
        places: Sequence[int],
        given: list[DeviceBuffer],
        taken: list[DeviceBuffer],
    ) -> None:
        shapes = [self.shapes[0][place] for place in places]
        with gpu.driver.use:  # a row without elements travels as one
            rows = [
                buffer if row_size(shape) else gpu.driver.allocate(shape[0], buffer.dtype, stream)
                for buffer, shape in zip(given, shapes, strict=True)
            ]
        handle = DeviceHandle(world.engine(), request, rows, arena=_Arena(gpu.driver, stream, taken))
        if request.kind == "alltoall":
            handle.splits = rows_per_rank(rows[0].size, None, self._collective.process_set.size())
        self._complete(gpu, handle)
        if request.kind == "allgather":
            counts = zip(handle.received, shapes, strict=True)
            check_even(self._collective, [[rows_in(count, shape) for count in each] for each, shape in counts])
        for shape, output, expected in zip(shapes, handle.outputs, taken, strict=True):
            if row_size(shape) and output.pointer != expected.pointer:
                raise MismatchError(
                    f"{title(request.kind, request.name)} inside jit, grad or vmap needs the same number of rows on "
                    f"all ranks, and {output.size} elements came instead of {expected.size} ({self._collective.site})"
                )

    def _complete(self, gpu: Gpu, handle: DeviceHandle) -> None:
        handle.site = self._collective.site
        try:
            handle.engine.run(handle).wait()
        except BaseException:
            if handle.finished is not None:  # it was queued, and uses memory that XLA now frees
                with suppress(CollectiveError):
                    gpu.join(handle.stream, handle.stream, handle.finished)
            raise


class _ThroughHost:
    """A collective that is executed in the host's memory, after a copy from the GPU and before one back."""

    def __init__(self, collective: Call, dtypes: Sequence[str], shapes: Sequence[Shape]) -> None:
        self._operation = handler.on_host(collective, dtypes, shapes)
        self._nbytes = [
            math.prod(shape) * storage_of(dtype).itemsize for dtype, shape in zip(dtypes, shapes, strict=True)
        ]
        self.count = len(shapes)

    def run(self, stream: int, arguments: Addresses, results: Addresses) -> None:
        driver = world.engine().gpu().driver
        arrays = [np.empty(nbytes, np.uint8) for nbytes in self._nbytes]
        addresses = [array.ctypes.data for array in arrays]
        self._copy(driver, stream, addresses, arguments)
        self._operation.run(addresses, addresses)
        self._copy(driver, stream, results, addresses)

    def _copy(self, driver: Driver, stream: int, targets: Addresses, sources: Addresses) -> None:
        """Copy, and wait for the copies."""
        with driver.use:
            for target, source, nbytes in zip(targets, sources, self._nbytes, strict=True):
                driver.copy(target, source, nbytes, stream)
            driver.synchronize(driver.record(stream))


def needs_host(collective: Call) -> bool:
    """Return whether a collective is computed on the host: compressed by PowerSGD, or with error feedback."""
    return rank_of(collective.wire) > 0 or residuals.are_kept_of(collective)


@lru_cache(maxsize=4096)
def _decode(text: bytes) -> Queued | _ThroughHost:
    collective, dtypes, shapes = handler.decode(text)
    return (_ThroughHost if needs_host(collective) else Queued)(collective, dtypes, shapes)


world.on_leaving(_decode.cache_clear)


def reduce(collective: Call, arrays: Sequence[Any]) -> list[Any]:
    """Execute an allreduce or a broadcast of concrete arrays on this rank's GPU, and wait. Return new arrays."""
    with jax.ensure_compile_time_eval():  # a function may be being traced around this call
        results = [jnp.empty_like(array, device=array.sharding if array.committed else None) for array in arrays]
    jax.block_until_ready([*arrays, *results])  # XLA writes them no more
    dtypes = [name_of(array.dtype) for array in arrays]
    operation = Queued(collective, dtypes, [array.shape for array in arrays])
    pointers = [[array.unsafe_buffer_pointer() for array in those] for those in (arrays, results)]
    operation.run(_LEGACY, *pointers)
    driver = world.engine().gpu().driver
    with driver.use:
        driver.synchronize(driver.record(_LEGACY))
    return results
