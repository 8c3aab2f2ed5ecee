"""The collectives on numpy arrays: what `import distrun` offers, and what the framework faces are made of.

Every rank of the process set must call the same operation with the same name; in which order each rank starts them does not
matter. Calls without a name are matched by their order, so they must be made in the same order everywhere. A name can be
under way once at a time. The forms ending in `_` work in place and return what they were given; the `_async` forms return a
`Handle` at once, and until it is done the tensor must not be changed (nor, in place, read).

Tensors are numpy arrays of any numeric or boolean dtype, of ml_dtypes.bfloat16, or anything `numpy.asarray` takes; of any
shape, contiguous or not (one that is not is copied). All of it raises `NotInitializedError` before `init()`, `UsageError`
for arguments that cannot be, and the errors of `Handle.wait`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distrun.errors import UsageError
from distrun.runtime import dtypes, world
from distrun.runtime.handles import AnyHandle, Handle, HandleGroup
from distrun.runtime.process_set import ProcessSet, global_process_set
from distrun.runtime.reduction import Average, Max, Min, Product, ReduceOp, Sum, check_op
from distrun.runtime.request import Request

__all__ = [
    "Average", "Max", "Min", "Product", "Sum", "allgather", "allgather_async", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "empty", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async", "poll",
    "reducescatter", "reducescatter_async", "synchronize",
]  # fmt: skip

Array = NDArray[Any]

LARGE = 256 << 10
"""Bytes from which a result is allocated in shared memory, where it is formed without another copy."""


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> Array:
    """An uninitialised array in the memory that collectives reach without a copy; otherwise an ordinary array.

    Fill it and reduce it in place for the highest speed. In a job on one host it lies in memory the ranks share; it is
    freed when the last view of it is gone, and survives `shutdown`.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = np.dtype(dtype)
    return world.engine().backend.empty(math.prod(shape), dtype).reshape(shape)


# What goes in and what comes out --------------------------------------------------------------------------------------


def _flat(tensor: Array) -> tuple[Array, str]:
    """A flat storage array of the tensor's elements and its type's name: its own memory where contiguous, else a copy.

    `reshape(-1)` alone would not do: of a strided one-dimensional array it is a view, and not contiguous.
    """
    dtype = dtypes.name_of(tensor.dtype)
    flat = (tensor if tensor.flags.c_contiguous else np.ascontiguousarray(tensor)).reshape(-1)
    return (flat.view(np.uint16) if dtype == dtypes.BFLOAT16 else flat), dtype


def _check_in_place(tensor: Any) -> None:
    if not isinstance(tensor, np.ndarray):
        raise UsageError(
            f"an in-place operation needs a numpy array, not {type(tensor).__name__}: use the form without _"
        )
    if not tensor.flags.writeable:
        raise UsageError("an in-place operation needs a writable array, and this one is read-only: copy it first")


def _room_for(count: int, dtype: np.dtype[Any], engine: world.AnyEngine) -> Array:
    if count * dtype.itemsize >= LARGE:
        return engine.backend.empty(count, dtype)
    return np.empty(count, dtype)


def _shaped(output: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if output.dtype != dtype:
        output = output.view(dtype)
    return output if output.shape == shape else output.reshape(shape)


def _cut(output: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The pieces of a flat array that have these shapes, as views."""
    pieces = []
    start = 0
    for shape in shapes:
        if len(shape) == 1:
            stop = start + shape[0]
            pieces.append(output[start:stop])
        else:
            stop = start + math.prod(shape)
            pieces.append(output[start:stop].reshape(shape))
        start = stop
    return pieces


def _new_group(handle: Handle) -> list[Array]:
    """The results of a group, which lie in one new buffer."""
    output: Array = handle.outputs[0]
    return _cut(output if output.dtype == handle.given else output.view(handle.given), handle.request.shapes)


def _new(handle: Handle) -> Array:
    return _shaped(handle.outputs[0], handle.request.shapes[0], handle.given)


def _given(handle: Handle) -> Any:
    """The result of an operation in place: what the caller gave."""
    return handle.given


def _copied_back(handle: Handle) -> Any:
    """The same where not all of it was contiguous, so that the operation worked on a copy."""
    tensors = handle.given if isinstance(handle.given, list) else [handle.given]
    for tensor, output in zip(tensors, handle.outputs, strict=True):
        if not tensor.flags.c_contiguous:
            tensor[...] = output.view(tensor.dtype).reshape(tensor.shape)
    return handle.given


def _flat_rows(tensor: Array) -> tuple[Array, str]:
    """`_flat` for operations that move rows. Rows without elements would get lost: they travel as one element each."""
    flat, dtype = _flat(tensor)
    return (np.zeros(tensor.shape[0], flat.dtype) if _row(tensor.shape) == 0 else flat), dtype


def _row(shape: Sequence[int]) -> int:
    """Elements in a row."""
    return math.prod(shape[1:])


def _rows_group(handle: Handle) -> list[Array]:
    """For results whose first dimension the operation decides."""
    dtype: np.dtype[Any] = handle.given
    return [
        _shaped(output, (-1, *shape[1:]), dtype) if _row(shape) else np.empty((output.size, *shape[1:]), dtype)
        for output, shape in zip(handle.outputs, handle.request.shapes, strict=True)
    ]


def _rows(handle: Handle) -> Array:
    return _rows_group(handle)[0]


def _same_dtype(tensors: Sequence[Array]) -> list[list[int]]:
    """The indices of the tensors, by dtype: a group of several dtypes travels as one operation per dtype."""
    places: dict[np.dtype[Any], list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    return list(places.values())


def _grouped(
    tensors: Sequence[Array], name: str | None, start: Callable[[Sequence[Array], str | None], Handle]
) -> AnyHandle:
    """Start one operation per dtype among the tensors."""
    if not tensors:
        raise UsageError("a group needs at least one tensor, and this one is empty: leave the call out, on all ranks")
    if len({tensor.dtype for tensor in tensors}) == 1:
        return start(tensors, name)
    groups = _same_dtype(tensors)
    return HandleGroup(
        [
            (start([tensors[place] for place in places], name and f"{name}.{tensors[places[0]].dtype}"), places)
            for places in groups
        ]
    )


def _arrays(tensors: Sequence[ArrayLike]) -> list[Array]:
    return [tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor) for tensor in tensors]


def _needs_rows(tensor: Array, kind: str) -> Array:
    if tensor.ndim == 0:
        raise UsageError(f"{kind} divides the first dimension, and a 0-dimensional tensor has none: reshape it to (1,)")
    return tensor


# Allreduce ------------------------------------------------------------------------------------------------------------


def _allreduce(
    tensor: Array,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> Handle:
    engine = world.engine()
    flat, dtype = _flat(tensor)
    check_op(op, dtype)
    request = Request(
        "allreduce", name, dtype, (tensor.shape,), op, -1, float(prescale), float(postscale), process_set.process_set_id
    )
    if not in_place:
        return Handle(engine, request, (flat,), (_room_for(flat.size, flat.dtype, engine),), _new, tensor.dtype)
    collect = _given
    if not tensor.flags.carray:
        _check_in_place(tensor)
        collect = _copied_back
    flats = (flat,)
    return Handle(engine, request, flats, flats, collect, tensor)


def allreduce_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `allreduce`; the handle's result is the reduced copy."""
    array = tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor)
    handle = _allreduce(array, name, op, prescale_factor, postscale_factor, process_set, in_place=False)
    return handle.engine.submit(handle)


def allreduce_async_(
    tensor: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `allreduce_`; the handle's result is `tensor`."""
    handle = _allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
    return handle.engine.submit(handle)


def allreduce(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """`postscale_factor * op(prescale_factor * tensor)` over the ranks: a new array of the tensor's shape and dtype.

    All ranks get the same bits. float16 and bfloat16 are summed in float32. An integer average is rounded towards zero.
    """
    array = tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor)
    handle = _allreduce(array, name, op, prescale_factor, postscale_factor, process_set, in_place=False)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def allreduce_(
    tensor: Array,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """`allreduce` in place; returns `tensor`."""
    handle = _allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def _allreduce_group(
    tensors: Sequence[Array],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    in_place: bool,
) -> Handle:
    engine = world.engine()
    dtype = dtypes.name_of(tensors[0].dtype)
    check_op(op, dtype)
    if dtype != dtypes.BFLOAT16 and all(tensor.flags.c_contiguous for tensor in tensors):
        flats = [tensor.reshape(-1) for tensor in tensors]
    else:
        flats = [_flat(tensor)[0] for tensor in tensors]
    shapes = tuple([tensor.shape for tensor in tensors])
    request = Request(
        "allreduce", name, dtype, shapes, op, -1, float(prescale), float(postscale), process_set.process_set_id
    )
    if not in_place:
        room = _room_for(sum([flat.size for flat in flats]), flats[0].dtype, engine)
        return Handle(engine, request, flats, (room,), _new_group, tensors[0].dtype)
    collect = _given
    if not all(tensor.flags.carray for tensor in tensors):
        for tensor in tensors:
            _check_in_place(tensor)
        collect = _copied_back
    return Handle(engine, request, flats, flats, collect, list(tensors))


def grouped_allreduce_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Start `grouped_allreduce`; the handle's result is the list of reduced copies."""

    def start(group: Sequence[Array], name: str | None) -> Handle:
        handle = _allreduce_group(group, name, op, prescale_factor, postscale_factor, process_set, in_place=False)
        return handle.engine.submit(handle)

    return _grouped(_arrays(tensors), name, start)


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Start `grouped_allreduce_`; the handle's result is the list of the tensors given."""

    def start(group: Sequence[Array], name: str | None) -> Handle:
        handle = _allreduce_group(group, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
        return handle.engine.submit(handle)

    return _grouped(tensors, name, start)


def grouped_allreduce(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`allreduce` of several tensors as one operation: none starts before all ranks have submitted the group.

    The tensors may differ in dtype and shape; the results are views of one buffer per dtype.
    """

    def start(group: Sequence[Array], name: str | None) -> Handle:
        handle = _allreduce_group(group, name, op, prescale_factor, postscale_factor, process_set, in_place=False)
        return handle.engine.run(handle)

    return _grouped(_arrays(tensors), name, start).wait()


def grouped_allreduce_(
    tensors: Sequence[Array],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`grouped_allreduce` in place; returns the tensors given."""

    def start(group: Sequence[Array], name: str | None) -> Handle:
        handle = _allreduce_group(group, name, op, prescale_factor, postscale_factor, process_set, in_place=True)
        return handle.engine.run(handle)

    return _grouped(tensors, name, start).wait()


# Allgather ------------------------------------------------------------------------------------------------------------


def _allgather(
    tensors: Sequence[Array], name: str | None, process_set: ProcessSet, collect: Callable[[Handle], Any]
) -> Handle:
    shapes = tuple((-1, *_needs_rows(tensor, "allgather").shape[1:]) for tensor in tensors)
    flats = [_flat_rows(tensor) for tensor in tensors]
    request = Request("allgather", name, flats[0][1], shapes, process_set=process_set.process_set_id)
    handle = Handle(world.engine(), request, [flat for flat, _ in flats], (), collect, tensors[0].dtype)
    return handle.engine.submit(handle)


def allgather_async(tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Start `allgather`; the handle's result is the gathered array."""
    return _allgather([np.asarray(tensor)], name, process_set, _rows)


def allgather(tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """The ranks' tensors, one after the other along dimension 0, in which they may differ."""
    return allgather_async(tensor, name, process_set).wait()  # type: ignore[no-any-return]


def grouped_allgather_async(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> AnyHandle:
    """Start `grouped_allgather`; the handle's result is the list of gathered arrays."""
    return _grouped(_arrays(tensors), name, lambda group, name: _allgather(group, name, process_set, _rows_group))


def grouped_allgather(
    tensors: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """`allgather` of several tensors as one operation."""
    return grouped_allgather_async(tensors, name, process_set).wait()


# Broadcast ------------------------------------------------------------------------------------------------------------


def _broadcast(tensor: Array, root: int, name: str | None, process_set: ProcessSet, in_place: bool) -> Handle:
    size = process_set.size()
    if not (isinstance(root, (int, np.integer)) and 0 <= root < size):
        raise UsageError(f"root_rank={root!r} is no rank of this process set: it has ranks 0 to {size - 1}")
    flat, dtype = _flat(tensor)
    request = Request("broadcast", name, dtype, (tensor.shape,), root=int(root), process_set=process_set.process_set_id)
    if in_place:
        _check_in_place(tensor)
        collect = _given if tensor.flags.c_contiguous else _copied_back
        return Handle(world.engine(), request, (), (flat,), collect, tensor)
    output = flat.copy() if world.rank() == root else np.empty(flat.size, flat.dtype)
    return Handle(world.engine(), request, (), (output,), _new, tensor.dtype)


def broadcast_async(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `broadcast`; the handle's result is the copy."""
    handle = _broadcast(np.asarray(tensor), root_rank, name, process_set, in_place=False)
    return handle.engine.submit(handle)


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start `broadcast_`; the handle's result is `tensor`."""
    handle = _broadcast(tensor, root_rank, name, process_set, in_place=True)
    return handle.engine.submit(handle)


def broadcast(
    tensor: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """A copy of the root's tensor; the others' must have the same shape and dtype. `root_rank` is a rank of the world."""
    handle = _broadcast(np.asarray(tensor), root_rank, name, process_set, in_place=False)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Overwrite `tensor` with the root's; returns it."""
    handle = _broadcast(tensor, root_rank, name, process_set, in_place=True)
    return handle.engine.run(handle).wait()  # type: ignore[no-any-return]


# Alltoall -------------------------------------------------------------------------------------------------------------


def _splits(rows: int, splits: ArrayLike | None, size: int) -> list[int]:
    if splits is None:
        if rows % size:
            raise UsageError(f"alltoall of {rows} rows among {size} ranks does not come out even: give `splits`")
        return [rows // size] * size
    wanted = np.asarray(splits)
    if wanted.shape != (size,) or not np.issubdtype(wanted.dtype, np.integer) or (wanted < 0).any():
        raise UsageError(f"splits={splits!r} must be {size} whole numbers >= 0, one per rank")
    if wanted.sum() != rows:
        raise UsageError(
            f"splits={wanted.tolist()} sum to {wanted.sum()}, and the tensor has {rows} rows: they must agree"
        )
    return [int(count) for count in wanted]


def alltoall_async(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `alltoall`; the handle's result is what `alltoall` returns."""
    array = _needs_rows(np.asarray(tensor), "alltoall")
    flat, dtype = _flat_rows(array)
    row = _row(array.shape) or 1
    rows = _splits(array.shape[0], splits, process_set.size())
    request = Request("alltoall", name, dtype, ((-1, *array.shape[1:]),), process_set=process_set.process_set_id)

    def collect(handle: Handle) -> Any:
        output = _rows(handle)
        if splits is None:
            return output
        return output, np.array([count // row for count in handle.received[0]], np.int32)

    handle = Handle(world.engine(), request, (flat,), (), collect, array.dtype)
    handle.splits = [count * row for count in rows]
    return handle.engine.submit(handle)


def alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send `splits[i]` rows of `tensor`, in order, to rank i, and receive what the others send here, in rank order.

    Without `splits` every rank gets the same number of rows, and the received array is returned; with them, a pair of it
    and of the int32 vector of rows received from each rank.
    """
    return alltoall_async(tensor, splits, name, process_set).wait()


# Reducescatter --------------------------------------------------------------------------------------------------------


def _reducescatter(
    tensors: Sequence[Array],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    collect: Callable[[Handle], Any],
) -> Handle:
    shapes = tuple(_needs_rows(tensor, "reducescatter").shape for tensor in tensors)
    flats = [_flat_rows(tensor) for tensor in tensors]
    check_op(op, flats[0][1])
    if op not in (Average, Sum):
        raise UsageError(f"reducescatter with op={op} is not offered: use distrun.Sum or distrun.Average, or allreduce")
    request = Request(
        "reducescatter",
        name,
        flats[0][1],
        shapes,
        op,
        -1,
        float(prescale),
        float(postscale),
        process_set.process_set_id,
    )
    handle = Handle(world.engine(), request, [flat for flat, _ in flats], (), collect, tensors[0].dtype)
    return handle.engine.submit(handle)


def reducescatter_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start `reducescatter`; the handle's result is this rank's part."""
    return _reducescatter([np.asarray(tensor)], name, op, prescale_factor, postscale_factor, process_set, _rows)


def reducescatter(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce over the ranks and keep this rank's rows of dimension 0: an even share, the earlier ranks one more if need be."""
    return reducescatter_async(  # type: ignore[no-any-return]
        tensor, name, op, prescale_factor, postscale_factor, process_set
    ).wait()


def grouped_reducescatter_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AnyHandle:
    """Start `grouped_reducescatter`; the handle's result is the list of this rank's parts."""

    def start(group: Sequence[Array], name: str | None) -> Handle:
        return _reducescatter(group, name, op, prescale_factor, postscale_factor, process_set, _rows_group)

    return _grouped(_arrays(tensors), name, start)


def grouped_reducescatter(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """`reducescatter` of several tensors as one operation."""
    return grouped_reducescatter_async(tensors, name, op, prescale_factor, postscale_factor, process_set).wait()


# Barrier and handles --------------------------------------------------------------------------------------------------


def barrier(name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks of the process set have called it."""
    request = Request("barrier", name, "uint8", (), process_set=process_set.process_set_id)
    handle = Handle(world.engine(), request, ())
    handle.engine.run(handle).wait()


def poll(handle: AnyHandle) -> bool:
    """Whether the operation is done; never waits."""
    return handle.poll()


def synchronize(handle: AnyHandle) -> Any:
    """Wait for the operation; its result. See `Handle.wait` for the errors."""
    return handle.wait()
