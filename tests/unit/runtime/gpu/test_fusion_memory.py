"""Spans of tensors' elements, and the memory in which tensors are packed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from distrun.errors import UsageError
from distrun.runtime.gpu.buffers import FUSION_BUFFERS, DeviceBuffer
from distrun.runtime.gpu.fusion_memory import FusionMemory
from distrun.runtime.gpu.packing import spans
from distrun.runtime.world.capabilities import communication_memory

STREAM = 7


@given(data=st.data())
def test_spans(data):
    """The spans of all tensors, element by element, are the buffers' elements; adjacent spans are one."""
    itemsize = 4
    counts = data.draw(st.lists(st.integers(0, 5), max_size=5))
    gaps = data.draw(st.lists(st.sampled_from([0, 100]), min_size=len(counts), max_size=len(counts)))
    buffers, at = [], 1000
    for count, gap in zip(counts, gaps, strict=True):
        buffers.append(DeviceBuffer(at + gap, count, np.dtype(np.float32)))
        at += gap + count * itemsize
    addresses = [buffer.pointer + place * itemsize for buffer in buffers for place in range(buffer.size)]
    sizes, rest = [], len(addresses)
    while rest:
        sizes.append(data.draw(st.integers(1, rest)))
        rest -= sizes[-1]
    found = list(spans(buffers, sizes))
    assert [sum(span.size for span in those) for those in found] == sizes
    flat = [span.pointer + place * itemsize for those in found for span in those for place in range(span.size)]
    assert flat == addresses
    for those in found:
        for one, other in itertools.pairwise(those):
            assert one.pointer + one.size * itemsize != other.pointer


class TestFusionMemory:
    def test_grows_and_serves_again(self, stand_ins):
        memory = FusionMemory(stand_ins.Driver())
        assert memory.pointer(0, STREAM) == 0
        first = memory.pointer(100, STREAM)
        assert memory.pointer(2 << 20, STREAM) == first
        assert memory.nbytes == 2 << 20
        memory.pointer((2 << 20) + 1, STREAM)
        assert memory.nbytes == 4 << 20
        assert communication_memory()[FUSION_BUFFERS] >= memory.nbytes

    def test_belongs_to_one_stream(self, stand_ins):
        memory = FusionMemory(stand_ins.Driver())
        one = memory.pointer(100, STREAM)
        keep = memory._memory[1]
        assert memory.pointer(100, STREAM + 1) != one
        assert memory.nbytes == keep.nbytes

    def test_needs_a_rehearsal_before_a_graph(self, stand_ins):
        class Driver(stand_ins.Driver):
            def allocate(self, *args: Any) -> DeviceBuffer:
                raise RuntimeError("operation not permitted when stream is capturing")

        driver = Driver()
        memory = FusionMemory(driver)
        with pytest.raises(RuntimeError, match=r"^operation not permitted"):
            memory.pointer(100, STREAM)
        driver.capturing = {STREAM}
        with pytest.raises(UsageError, match=r"2 MiB .* not permitted .*: carry out the same operations once before"):
            memory.pointer(100, STREAM)
        assert memory.nbytes == 0

    def test_memory_that_a_graph_was_captured_with_belongs_to_the_graph(self, stand_ins):
        driver = stand_ins.Driver()
        memory = FusionMemory(driver)
        before = memory.pointer(100, STREAM)
        driver.capturing = {STREAM}
        assert memory.pointer(100, STREAM) == before, "no allocation during a capture if it can be helped"
        assert memory.pointer(50, STREAM) == before
        larger = memory.pointer(3 << 20, STREAM)
        driver.capturing = set()
        assert memory.pointer(100, STREAM) not in (before, larger)
        assert memory.nbytes == (2 + 4 + 2) << 20
        driver.capturing = {STREAM}
        assert memory.pointer(100, STREAM) == larger
