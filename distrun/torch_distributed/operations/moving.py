"""Collectives that move tensors: received elements are copied into the tensors that the script has given.

Tensors travel flat. A received tensor has the size that its sender gave it, so sizes are compared with the tensors
given
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distrun.errors import MismatchError
from distrun.runtime.collectives.call import moving_call, row_size
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import CPU
from distrun.torch import operations, tensors as storage
from distrun.torch_distributed.interface.calls import ArgumentError, check_alike, check_one_each
from distrun.torch_distributed.members import Members
from distrun.torch_distributed.operations.repeated import all_known

Parts = Sequence[Tensor | None]
"""One tensor for each rank of a group (None for nothing), or a single tensor with the elements of all ranks."""

_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Moving:
    """The collectives of one process group that move tensors."""

    def __init__(self, members: Members) -> None:
        self._size = len(members.ranks)
        self._order = members.order
        self._rank = members.process_set.rank()
        self._gathering = moving_call("allgather", None, members.process_set)
        self._exchanging = moving_call("alltoall", None, members.process_set)

    def allgather(self, targets: Sequence[Parts], inputs: Sequence[Tensor]) -> Handle:
        """Return the handle of an allgather of each of `inputs`, all of one dtype, each into one of `targets`."""
        check_alike(inputs[0].dtype, chain(inputs, *targets))
        storage.check_written(chain(*targets))
        sizes = [self._room(target) for target in targets]
        flats = [flat(tensor) for tensor in inputs]
        is_even = all(len(set(each)) == 1 and each[0] for each in sizes)
        if is_even:  # let the ranks compare the sizes
            flats = [tensor.unsqueeze(0) for tensor in flats]
        handle = operations.move_rows(flats, self._gathering, storage.plain_arrays(flats))
        if is_even and handle.request.device != CPU:
            handle.request = all_known(handle.request)
        handle.outputs = self._rooms(handle, targets)
        handle.collect = self._deliver
        handle.given = targets, sizes, flats[0].dtype
        return handle

    def _rooms(self, handle: Handle, targets: Sequence[Parts]) -> list[Any]:
        """Return the memory of the targets, if the results can be written there directly."""
        if handle.request.device != CPU or self._order is not None:
            return []
        rooms = []
        for target, source in zip(targets, handle.inputs, strict=True):
            tensor = target[0] if len(target) == 1 else None
            if tensor is None or not tensor.numel() or not storage.is_flat(tensor):
                return []
            room: Any = storage.flat(storable(tensor.detach()))
            place = room[self._rank * source.size :]
            if np.may_share_memory(room, source) and place.ctypes.data != source.ctypes.data:
                return []
            rooms.append(room)
        return rooms

    def exchange(self, parts: Parts, targets: Parts, like: Tensor) -> Handle:
        """Return the handle of an alltoall that sends each rank one of `parts`, and receives one of `targets` from
        each.

        All these tensors have the dtype and the device of `like`.
        """
        check_alike(like.dtype, chain(parts, targets))
        check_one_each(parts, self._size)
        check_one_each(targets, self._size)
        flats = [flat(part) for part in parts if part is not None] or [flat(like)[:0]]
        whole = torch.cat(flats) if len(flats) > 1 else flats[0]
        return self._alltoall(whole, self._room(parts), targets, self._room(targets))

    def exchange_rows(
        self, target: Tensor, source: Tensor, received_rows: Sequence[int], sent_rows: Sequence[int]
    ) -> Handle:
        """Return the handle of an alltoall of the rows of `source` into `target`. Without numbers of rows, each rank
        gets
        the same number."""
        check_alike(source.dtype, (source, target))
        sizes, counts = self._elements(target, received_rows), self._elements(source, sent_rows)
        return self._alltoall(flat(source), counts, [target], sizes)

    def _alltoall(self, whole: Tensor, counts: Sequence[int], targets: Parts, sizes: Sequence[int]) -> Handle:
        """Return the handle of an alltoall of consecutive elements of `whole`: `counts` to each rank, `sizes` from each
        rank."""
        storage.check_written(targets)
        if self._order is not None:
            whole = torch.cat(self._by_place(torch.split(whole, list(counts))))
            counts = self._by_place(counts)
        request = operations.request_of(self._exchanging, [whole])
        handle = operations.prepare(request, (storage.flat(whole),), (), self._deliver)
        handle.splits = counts
        handle.given = [targets], [sizes], whole.dtype
        return handle

    def _elements(self, tensor: Tensor, rows: Sequence[int]) -> list[int]:
        """Return the number of elements in `rows` for each rank; equal numbers if `rows` is empty."""
        if not rows:
            return self._room([tensor])
        row = row_size(tensor.shape)
        if not tensor.dim() or len(rows) != self._size or min(rows) < 0 or sum(rows) != tensor.shape[0]:
            raise ArgumentError(
                f"splits {list(rows)} do not fit {self._size} ranks and a tensor of shape {list(tensor.shape)}: give "
                "one number >= 0 for each rank, and its rows in all"
            )
        return [each * row for each in rows]

    def _room(self, parts: Parts) -> list[int]:
        """Return the number of elements for each rank."""
        if len(parts) == 1 and parts[0] is not None:
            each, rest = divmod(parts[0].numel(), self._size)
            if rest:
                raise ArgumentError(
                    f"a tensor of {parts[0].numel()} elements does not come out even among {self._size} ranks"
                )
            return [each] * self._size
        check_one_each(parts, self._size)
        return [0 if part is None else part.numel() for part in parts]

    def _by_place(self, each: Sequence[Any]) -> list[Any]:
        """Return `each`, which has an item for each rank of the group, in the order of the process set."""
        return [one for _, one in sorted(zip(self._order or (), each, strict=True), key=lambda pair: pair[0])]

    def _deliver(self, handle: Handle) -> Any:
        targets, sizes, dtype = handle.given
        for target, expected, array, counts in zip(targets, sizes, handle.outputs, handle.received, strict=True):
            if any(expected) or any(counts):
                self._fill(target, expected, storage.tensor_of(array, dtype, (-1,)), counts)
        return targets

    def _fill(self, targets: Parts, expected: Sequence[int], whole: Tensor, counts: Sequence[int]) -> None:
        sent = list(counts) if self._order is None else [counts[place] for place in self._order]
        for rank, (count, size) in enumerate(zip(sent, expected, strict=True)):
            if count != size:
                raise MismatchError(
                    f"rank {rank} of the group has sent {count} elements, and there is room for {size}: give tensors "
                    "of the same sizes on both sides"
                )
        is_one = len(targets) == 1
        if is_one and self._order is None:
            _copy(targets[0], whole)
            return
        parts = list(torch.split(whole, list(counts)))
        parts = parts if self._order is None else [parts[place] for place in self._order]
        for target, part in zip(targets, [torch.cat(parts)] if is_one else parts, strict=True):
            _copy(target, part)


def _copy(target: Tensor | None, elements: Tensor) -> None:
    if target is not None and target.data_ptr() != elements.data_ptr():  # otherwise it was received there
        target = storable(target.detach())
        target.copy_(elements.view(target.shape))


def storable(tensor: Tensor) -> Tensor:
    """Return a view of a tensor, whose elements are only moved, in a dtype that can travel, such as bytes for 8-bit
    floats."""
    if tensor.dtype in storage.STORAGE or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor
    return tensor.view(_SAME_SIZE[tensor.dtype.itemsize])


def flat(tensor: Tensor) -> Tensor:
    """Return a tensor's elements as a one-dimensional tensor that can travel."""
    return storable(tensor.detach()).reshape(-1)
