"""Reductions, with the operators of torch.distributed.

The runtime computes sums, averages, products, minima and maxima. Bitwise operators are applied here, to the gathered
tensors of all ranks. If each rank gets only a part of the result, a sum or an average of equal parts is a
reducescatter.
For other operators and sizes, each rank computes the whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed as dist

from distrun.runtime.collectives.call import Call, moving_call, reduction_call
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.reduction import Average, Max, Min, Product, ReduceOp, Sum
from distrun.runtime.operations.request import CPU
from distrun.torch import operations, tensors as storage
from distrun.torch.sparse import start_sparse
from distrun.torch_distributed.interface.calls import ArgumentError, check_alike
from distrun.torch_distributed.members import Members

_Kind: Any = dist.ReduceOp.RedOpType  # whose members its types do not have

_OPS: dict[Any, ReduceOp] = {
    _Kind.SUM: Sum,
    _Kind.AVG: Average,
    _Kind.PRODUCT: Product,
    _Kind.MIN: Min,
    _Kind.MAX: Max,
}
_BITWISE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    _Kind.BAND: torch.bitwise_and,
    _Kind.BOR: torch.bitwise_or,
    _Kind.BXOR: torch.bitwise_xor,
}
_COMBINE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    _Kind.SUM: torch.add,
    _Kind.AVG: torch.add,
    _Kind.PRODUCT: torch.mul,
    _Kind.MIN: torch.minimum,
    _Kind.MAX: torch.maximum,
    **_BITWISE,
}
_PREMULTIPLIED = _Kind.PREMUL_SUM
_kind_of = attrgetter("dtype", "device")
SUM = dist.ReduceOp(dist.ReduceOp.SUM)
"""The operator of a call that names none."""


class Reducing:
    """The reductions of one process group. The `Call` of each operator is made once and kept."""

    def __init__(self, members: Members, rank: int) -> None:
        """`rank` is ours in the group."""
        self._set = members.process_set
        self._size = len(members.ranks)
        self._rank = rank
        self._is_ordered = members.order is None
        self._calls: dict[tuple[str, Any], Call] = {}

    def in_place(self, tensors: Sequence[Tensor], op: Any) -> Handle:
        """Return a reduction of tensors of one dtype that has the operator, on one device, in their own memory."""
        if op.op == _PREMULTIPLIED:
            scaled = [_times_factor(tensor, op) for tensor in tensors]
            handle = self.in_place(scaled, SUM)
            afterwards(handle, lambda: copy_each(tensors, scaled))
            return handle
        call = self.call("allreduce", op)
        if call is None:
            storage.check_written(tensors)
            return _bitwise(tensors, op.op, moving_call("allgather", None, self._set))
        return operations.allreduce_in_place(tensors, call, storage.plain_arrays(tensors))

    def together(self, tensors: Sequence[Tensor], op: Any) -> Handle:
        """Return the handle of a reduction of several dense tensors, of one dtype and shape, on each rank into each of
        them.

        An average is the sum divided by the number of ranks, as with gloo.
        """
        if not tensors or any(tensor.shape != tensors[0].shape for tensor in tensors):
            raise ArgumentError(
                f"allreduce() was given tensors of shapes {[list(tensor.shape) for tensor in tensors]} to add up: give "
                "some, all of one shape, or call all_reduce_coalesced"
            )
        check_alike(tensors[0].dtype, tensors)
        storage.check_written(tensors)
        if op.op not in _COMBINE:
            raise ArgumentError(f"{op.op.name} of several tensors of a rank is not offered: combine them first")
        whole = functools.reduce(_COMBINE[op.op], [tensor.detach() for tensor in tensors]).contiguous()
        handle = self.in_place([whole], op)
        afterwards(handle, lambda: copy_each(tensors, [whole] * len(tensors)))
        return handle

    def sparse_in_place(self, tensor: Tensor, op: Any) -> tuple[list[Handle], Callable[[], object]]:
        """Return the operations of a reduction of a sparse tensor, and the function that makes its result from theirs.
        The operator must be a sum or an average.
        """
        scaled, op = (_times_factor(tensor, op), SUM) if op.op == _PREMULTIPLIED else (tensor, op)
        call = self.call("allreduce", op)
        if call is None:
            raise ArgumentError(f"{op.op.name} of sparse tensors is not offered: use SUM or AVG")
        handles: list[Handle] = []

        def noted(handle: Handle) -> Handle:
            handles.append(handle)
            return handle

        whole = start_sparse(scaled, call, noted)

        def finish() -> None:
            with torch.no_grad():  # not `detach()`, which makes another sparse tensor
                tensor.copy_(whole.wait())

        return handles, finish

    def to_root(self, tensor: Tensor, op: Any, is_root: bool) -> Handle:
        """Return the handle of a reduction into the root's tensor. Other ranks' tensors keep their values."""
        if is_root:
            storage.check_written([tensor])
        whole = tensor.detach().clone(memory_format=torch.contiguous_format)
        handle = self.in_place([whole], op)
        if is_root:
            afterwards(handle, lambda: copy_each([tensor], [whole]))
        return handle

    def scattered(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], op: Any) -> Handle:
        """Return the handle of a reduction of tensors of one dtype, where each rank gets a part of each.

        Args:
            outputs: the tensors for this rank's parts.
            inputs: for each output the parts of all ranks, or one tensor of equal parts for all.
        """
        check_alike(outputs[0].dtype, chain(outputs, *inputs))
        storage.check_written(outputs)
        sizes = [self._sizes(parts, output) for parts, output in zip(inputs, outputs, strict=True)]
        wholes = [_joined(parts) for parts in inputs]
        if op.op == _PREMULTIPLIED:
            wholes, op = [_times_factor(whole, op) for whole in wholes], SUM
        call = self.call("reducescatter", op)
        is_even = all(size == each[0] for each in sizes for size in each)
        if call is not None and call.op in (Sum, Average) and is_even and self._is_ordered:
            rows = [whole.view(self._size, each[0]) for whole, each in zip(wholes, sizes, strict=True)]
            handle = operations.move_rows(rows, call, storage.plain_arrays(rows))
            handle.outputs = _rooms(handle, outputs)
            reduced = handle.collect
            handle.collect = lambda handle: copy_each(outputs, reduced(handle))
            return handle
        wholes = [whole.clone() for whole in wholes]  # it may be the caller's
        own = [torch.split(whole, each)[self._rank] for whole, each in zip(wholes, sizes, strict=True)]
        handle = self.in_place(wholes, op)
        afterwards(handle, lambda: copy_each(outputs, own))
        return handle

    def call(self, kind: str, op: Any) -> Call | None:
        """Return the call of an allreduce or a reducescatter, or None for an operator that the runtime lacks."""
        which = op.op
        call = self._calls.get((kind, which))
        if call is None and which in _OPS:
            call = self._calls[kind, which] = reduction_call(kind, None, _OPS[which], 1.0, 1.0, self._set)
        return call

    def _sizes(self, parts: Sequence[Tensor], output: Tensor) -> list[int]:
        """Return the number of elements of each rank's part."""
        whole = parts[0].numel() if len(parts) == 1 else -1
        sizes = [output.numel()] * self._size if whole >= 0 else [part.numel() for part in parts]
        if len(sizes) != self._size or sizes[self._rank] != output.numel() or whole not in (-1, sum(sizes)):
            raise ArgumentError(
                f"a reduce_scatter among {self._size} ranks into a tensor of {output.numel()} elements on this one "
                f"does not fit parts of {[part.numel() for part in parts]} elements: give one part for each rank, of "
                "the size of its output"
            )
        return sizes


def _rooms(handle: Handle, outputs: Sequence[Tensor]) -> list[Any]:
    """Return the memory of the outputs, if the results can be written there directly."""
    if handle.request.device != CPU or not all(output.numel() and storage.is_flat(output) for output in outputs):
        return []
    rooms: list[Any] = [storage.flat(output) for output in outputs]
    pairs = zip(rooms, handle.inputs, strict=True)
    return [] if any(np.may_share_memory(room, source) for room, source in pairs) else rooms


def _times_factor(tensor: Tensor, op: Any) -> Tensor:
    """Return this rank's summand of a `PREMUL_SUM`: the tensor times this rank's factor."""
    return (tensor.detach() * float(op.factor)).to(tensor.dtype)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    flats = [part.detach().reshape(-1) for part in parts]
    return flats[0] if len(flats) == 1 else torch.cat(flats)


def _bitwise(tensors: Sequence[Tensor], which: Any, call: Call) -> Handle:
    """Gather the ranks' tensors, and combine them here."""
    dtype = tensors[0].dtype
    if dtype.is_floating_point or dtype.is_complex:
        raise ArgumentError(f"{which.name} has no meaning for {dtype}: use integers or bool, or tensor.view(...)")
    combine = _BITWISE[which]
    handle = operations.move_rows([tensor.unsqueeze(0) for tensor in tensors], call)
    gathered = handle.collect
    handle.collect = lambda handle: copy_each(
        tensors, [functools.reduce(combine, all_ranks.unbind(0)) for all_ranks in gathered(handle)]
    )
    return handle


def afterwards(handle: Handle, do: Callable[[], Any]) -> None:
    """Arrange for `do` to be called when the results of a handle are fetched."""
    collect = handle.collect

    def both(handle: Handle) -> Any:
        collect(handle)
        return do()

    handle.collect = both


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copy the elements of each source into the target at its place, unless they are there. Return the targets."""
    for target, source in zip(targets, sources, strict=True):
        if target.data_ptr() == source.data_ptr():  # the result was written there directly
            continue
        target.detach().copy_(source.view(target.shape))
    return targets


def groups(tensors: Sequence[Tensor], *others: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the tensors of each dtype on each device, since one operation takes one of them, and the items of `others`
    at the same places. An empty list is refused, and lists of different lengths.
    """
    if not tensors:
        raise ArgumentError("a collective of a list of tensors was given an empty one: give it at least one tensor")
    if any(len(each) != len(tensors) for each in others):
        lengths = [len(each) for each in (tensors, *others)]
        raise ArgumentError(f"a collective was given lists of {lengths} tensors: give one output for each input")
    if len(set(map(_kind_of, tensors))) == 1:
        yield (tensors, *others)
        return
    places: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(_kind_of(tensor), []).append(place)
    for own in places.values():
        yield tuple([each[place] for place in own] for each in (tensors, *others))
