"""Dispatch: which of the operations that are ready together are executed as one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distrun.runtime.backends import dispatch
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request


class Recording(HierarchicalBackend):
    """A backend of two ranks that notes how its allreduces are called."""

    def __init__(self, wire: str) -> None:
        self._wire, self.rank, self.size = wire, 0, 2
        self.calls: list[tuple[list[int], Feedback | None]] = []

    def allreduce(self, inputs, outputs, reduction, what, feedback=None):
        self.calls.append(([array.size for array in inputs], feedback))


def handle(count, feedback=None):
    array = np.zeros(count, np.float32)
    request = Request("allreduce", f"of {count}", "float32", ((count,),))
    made = Handle(None, request, [array], [array])
    made.feedback = feedback
    return made


@pytest.mark.parametrize("wire", ["", "bfloat16", "int8"])
def test_operations_that_are_ready_together_are_one(wire):
    backend = Recording(wire)
    dispatch.execute(SimpleNamespace(backends={0: backend}), [handle(10), handle(5000), handle(20)])
    assert backend.calls == [([10, 5000, 20], None)]


def test_those_whose_losses_are_made_up_for_are_executed_alone_and_the_small_ones_still_as_one():
    backend, feedbacks = Recording("int4"), [Feedback(), Feedback(), Feedback()]
    handles = [handle(10), handle(5000, feedbacks[0]), handle(20, feedbacks[1]), handle(6000, feedbacks[2])]
    dispatch.execute(SimpleNamespace(backends={0: backend}), handles)
    assert backend.calls == [([5000], feedbacks[0]), ([6000], feedbacks[2]), ([10, 20], None)]
