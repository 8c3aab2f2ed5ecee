"""The collectives on arrays of this rank's GPU: `GpuArray`s as buffers for the engine, and results as cupy arrays.

`reductions` and `copies` start the handles made here. Results are cupy arrays, which cupy's current stream may use
after the handle's `wait`. An operation in place returns the caller's own objects, ready for the library that made them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from distrun.runtime.collectives.call import Call, row_size, rows_in
from distrun.runtime.gpu import arrays
from distrun.runtime.gpu.arrays import CupyArena, GpuArray
from distrun.runtime.gpu.buffers import Borrowed, DeviceBuffer
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import CUDA, Request
from distrun.runtime.world import world


def take(tensor: Any, in_place: bool = False) -> GpuArray:
    """Return an array on a GPU in the form that the functions below use (see `arrays.gpu_array`).

    Raises:
        NotInitializedError: before `init`.
        UsageError: this rank has no GPU, or the array lies elsewhere or has a dtype that cannot travel.
    """
    return arrays.gpu_array(tensor, _driver(), in_place)


def _driver() -> Driver:
    return world.engine().gpu().driver


def allreduce(tensors: Sequence[GpuArray], call: Call, in_place: bool, is_group: bool) -> Handle:
    """Return an allreduce of tensors of one dtype, not yet started. With `is_group` its result is a list."""
    with _driver().use:
        flats, dtype = _flats(tensors)
        request = call.request(dtype, tuple([tensor.shape for tensor in tensors]), CUDA)
        if in_place:
            return handle(request, flats, flats, _given_group if is_group else _given, tensors)
        room = _room(sum(flat.size for flat in flats), flats[0].dtype)
        return handle(request, flats, [room], _new_group if is_group else _new, tensors[0].dtype)


def broadcast(tensor: GpuArray, call: Call, in_place: bool) -> Handle:
    """Return a broadcast of `tensor`, not yet started."""
    driver = _driver()
    with driver.use:
        flat, dtype = tensor.flat()
        request = call.request(dtype, (tensor.shape,), CUDA)
        if in_place:
            return handle(request, (), [flat], _given, [tensor])
        output = _room(flat.size, flat.dtype)
        if world.rank() == call.root:
            driver.copy(output.pointer, flat.pointer, flat.nbytes, CupyArena(driver).current_stream())
        made = handle(request, (), [output], _new, tensor.dtype)
        made.kept_alive = [flat]
        return made


def flat_rows(tensors: Sequence[GpuArray]) -> tuple[list[DeviceBuffer], str]:
    """Return tensors of one dtype as buffers, for operations that move rows, and the name of the dtype."""
    with _driver().use:
        flats, dtype = _flats(tensors)
        return [_with_rows(tensor, flat) for tensor, flat in zip(tensors, flats, strict=True)], dtype


def handle(
    request: Request,
    inputs: Sequence[DeviceBuffer],
    outputs: Sequence[DeviceBuffer],
    collect: Callable[[Handle], Any],
    given: Any,
) -> DeviceHandle:
    """Return a handle of an operation that starts from cupy's current stream, with results in cupy's memory (see
    `Handle`)."""
    made = DeviceHandle(world.engine(), request, inputs, outputs, collect, given, arena=CupyArena(_driver()))
    made.kept_alive = [buffer.owner for buffer in inputs if isinstance(buffer.owner, Borrowed)]
    return made


def _flats(tensors: Sequence[GpuArray]) -> tuple[list[DeviceBuffer], str]:
    """Return the tensors as buffers, and the name of their dtype."""
    pairs = [tensor.flat() for tensor in tensors]
    return [flat for flat, _ in pairs], pairs[0][1]


def _with_rows(tensor: GpuArray, flat: DeviceBuffer) -> DeviceBuffer:
    """Return `flat`, or one element of any value per row if rows have no elements: the receiver counts rows by
    elements."""
    return flat if row_size(tensor.shape) else _room(tensor.shape[0], flat.dtype)


def _room(count: int, dtype: np.dtype[Any]) -> DeviceBuffer:
    arena = CupyArena(_driver())
    return arena.empty(count, dtype, arena.current_stream())


# Results --------------------------------------------------------------------------------------------------------------


def _driver_of(done: Handle) -> Driver:
    return cast("DeviceHandle", done).engine.gpu().driver


def _new_group(handle: Handle) -> list[Any]:
    """Return the results of a group, which lie in one new buffer."""
    (output,), pieces, start = handle.outputs, [], 0
    for shape in handle.request.shapes:
        stop = start + math.prod(shape)
        part: DeviceBuffer = output.part(start, stop)  # type: ignore[attr-defined]
        pieces.append(arrays.cupy_array(_driver_of(handle), part, shape, handle.given))
        start = stop
    return pieces


def _new(handle: Handle) -> Any:
    return _new_group(handle)[0]


def _given_group(handle: Handle) -> list[Any]:
    """Write the results to the caller's tensors and return these. Foreign ones are handed back to their library."""
    tensors: Sequence[GpuArray] = handle.given
    driver = _driver_of(handle)
    with driver.use:
        for tensor, output in zip(tensors, handle.outputs, strict=True):
            tensor.write_back(output)  # type: ignore[arg-type]
        foreign = [tensor for tensor in tensors if tensor.is_foreign]
        if foreign:
            event = driver.record(CupyArena(driver).current_stream())
            for tensor in foreign:
                tensor.hand_back(driver, event)
    return [tensor.given for tensor in tensors]


def _given(handle: Handle) -> Any:
    return _given_group(handle)[0]


def rows_group(handle: Handle) -> list[Any]:
    """Return the results of an operation that moves rows, and so decides the extents of their first dimension."""
    results = []
    for output, shape in zip(handle.outputs, handle.request.shapes, strict=True):
        shape = (rows_in(output.size, shape), *shape[1:])
        results.append(arrays.cupy_array(_driver_of(handle), output, shape, handle.given))  # type: ignore[arg-type]
    return results
