"""The backend of a world of one: every collective is a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distrun.runtime.backends.base import Backend, Flat, result_array
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Reduction
from distrun.tensor_fusion.packing import unpack


class SingleProcessBackend(Backend):
    """The only rank of a world of one."""

    name = "single process"
    rank = 0
    size = 1

    def allreduce(
        self,
        inputs: Sequence[Flat],
        outputs: Sequence[Flat],
        reduction: Reduction,
        what: str,
        feedback: Feedback | None = None,
    ) -> None:
        if len(inputs) != len(outputs):
            result = np.concatenate(inputs)
            self.allreduce([result], [result], reduction, what)
            unpack(result, outputs)
            return
        for source, target in zip(inputs, outputs, strict=True):
            if not reduction.is_identity:
                reduction.combine([source], [target])
            elif source is not target:
                target[:] = source

    def allgather(self, array: Flat, what: str, room: Flat | None = None) -> tuple[Flat, list[int]]:
        output = result_array(room, array.size, array.dtype)
        output[:] = array
        return output, [array.size]

    def broadcast(self, array: Flat, root: int, what: str) -> None:
        """Do nothing: the root is the only rank."""

    def alltoall(self, array: Flat, splits: Sequence[int], what: str) -> tuple[Flat, list[int]]:
        return array[: splits[0]].copy(), [splits[0]]

    def reducescatter(
        self, array: Flat, counts: Sequence[int], reduction: Reduction, what: str, room: Flat | None = None
    ) -> Flat:
        output = result_array(room, array.size, array.dtype)
        if reduction.is_identity:
            output[:] = array
        else:
            reduction.combine([array], [output])
        return output

    def barrier(self, what: str) -> None:
        """Do nothing: this is the only rank."""
