"""Collectives that move tensors: what each rank receives is copied into the tensors that its script has given.

Tensors travel flat. The sizes of what comes are those of what the others have sent, so they are compared with the
tensors given here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from distrun.errors import MismatchError
from distrun.runtime.collectives.call import moving_call
from distrun.runtime.operations.handle import Handle
from distrun.torch import operations, tensors as storage
from distrun.torch_distributed.members import Members
from distrun.torch_distributed.reducing import storable


class Moving:
    """The collectives of one process group that move tensors."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._gathering = moving_call("allgather", None, members.process_set)

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor]) -> Handle:
        """Return an allgather of each of `inputs`, all of one dtype, into the tensors of one of `outputs`.

        Those are as many as ranks, each of the size of what its rank sends, or one tensor for all.
        """
        handle = operations.move_rows([storable(tensor).reshape(-1) for tensor in inputs], self._gathering)
        handle.collect = self._received
        handle.given = outputs
        return handle

    def _received(self, handle: Handle) -> Any:
        for targets, array, counts in zip(handle.given, handle.outputs, handle.received, strict=True):
            self._scatter_into(targets, array, counts)
        return handle.given

    def _scatter_into(self, targets: Sequence[Tensor], array: storage.Flat, counts: Sequence[int]) -> None:
        order = self._members.order
        sizes = [target.numel() for target in targets]
        sent = list(counts) if order is None else [counts[place] for place in order]
        if len(targets) == 1:
            sent = [sum(counts)]
        if sizes != sent:
            rank = next(rank for rank, (size, count) in enumerate(zip(sizes, sent, strict=True)) if size != count)
            raise MismatchError(f"rank {rank} has sent {sent[rank]} elements, and there is room for {sizes[rank]}")
        whole = storage.tensor_of(array, storable(targets[0]).dtype, (-1,))
        if len(targets) == 1 and order is None:
            _fill(targets[0], whole)
            return
        parts: Sequence[Tensor] = torch.split(whole, list(counts))
        parts = parts if order is None else [parts[place] for place in order]
        if len(targets) == 1:
            _fill(targets[0], torch.cat(list(parts)))
            return
        for target, part in zip(targets, parts, strict=True):
            _fill(target, part)


def _fill(target: Tensor, elements: Tensor) -> None:
    target = storable(target.detach())
    target.copy_(elements.view(target.shape))
