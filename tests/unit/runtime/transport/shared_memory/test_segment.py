"""Shared memory: where things lie, and that the heap gives no byte to two owners and none away for good."""

from __future__ import annotations

import gc
import itertools
import os

import numpy as np
import pytest
from hypothesis import given, strategies as st
from in_process.calls import at_once

from distrun.errors import BootstrapError
from distrun.runtime.transport.shared_memory.segment import (
    AREAS,
    LINE,
    PAGE,
    REASON,
    RING,
    STAGE,
    WINDOW,
    Heap,
    Layout,
    Segment,
    new_segment_fd,
    segment_size,
)

BYTE = np.dtype(np.uint8)
HEAP = 64 * PAGE


def segment(local_size: int = 2, heap: int = HEAP) -> Segment:
    """Return a segment of a host with so many ranks, whose heap has so many bytes."""
    fd = new_segment_fd(Layout(local_size).heap + heap)
    made = Segment(fd, os.fstat(fd).st_size, local_size)
    os.close(fd)
    return made


@pytest.mark.parametrize("local_size", [1, 2, 8, 64, 500])
def test_the_parts_of_a_segment_do_not_overlap_and_begin_on_pages(local_size):
    layout = Layout(local_size)
    parts = [
        (0, 4 * 8 * LINE),
        (layout.lines, 2 * 8 * layout.line_words),
        (layout.reason, REASON),
        (layout.stage, 2 * STAGE),
    ]
    parts += [(layout.ring(index), PAGE + RING) for index in range(1 + local_size)]
    parts += [(layout.area(index), layout.area_size) for index in range(AREAS)]
    parts.append((layout.heap, 1))
    for (start, length), (following, _) in itertools.pairwise(parts):
        assert start % PAGE == 0
        assert start + length <= following


def test_a_line_has_room_for_the_splits_of_an_alltoall():
    assert all(Layout(size).line_words >= 1 + size for size in (1, 2, 100, 1000))


@pytest.mark.parametrize("local_size", [1, 2, 100])
def test_a_segment_is_as_large_as_the_memory_but_takes_none_of_it(local_size):
    size = segment_size(local_size)
    assert size >= min(1 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    fd = new_segment_fd(size)
    assert os.fstat(fd).st_size == size
    assert os.fstat(fd).st_blocks == 0
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_two_mappings_show_the_same_memory():
    fd = new_segment_fd(Layout(2).heap + HEAP)
    one, other = (Segment(fd, os.fstat(fd).st_size, 2) for _ in range(2))
    os.close(fd)
    array = Heap(one).empty(100, np.dtype(np.float64))
    array[:] = np.arange(100)
    view = other.view(one.offset_of(array), 100, np.dtype(np.float64))
    assert view.tolist() == list(range(100))
    view[7] = -1
    assert array[7] == -1
    one.words[3 * LINE] = -5
    assert other.words[3 * LINE] == -5


def test_what_cannot_be_mapped_is_a_sentence():
    ranks = 1 << 28  # their mailboxes alone are as large as the whole address space
    with pytest.raises(BootstrapError, match=r"cannot map \d+ bytes of shared memory .*ulimit -v unlimited"):
        segment(ranks)
    array = 1 << 48
    with pytest.raises(MemoryError, match=r"cannot map \d+ bytes of shared memory .*ulimit -v unlimited"):
        Heap(segment(heap=2 * array)).empty(array, BYTE)


def mapped(made: Segment) -> int:
    """Return the bytes of a segment that this process has mapped."""
    return sum(window.memory.size for window in made._mapped.values())


def test_a_process_maps_what_it_uses_and_an_array_may_be_larger_than_all_before():
    made = segment(heap=segment_size(2) - Layout(2).heap)
    heap = Heap(made)
    assert mapped(made) < 8 << 20
    small = [heap.empty(WINDOW // 2, BYTE) for _ in range(3)]
    large = heap.empty(1 << 30, BYTE)
    assert len({made.offset_of(array) for array in (*small, large)}) == 4
    assert mapped(made) < WINDOW + 2 * WINDOW + (2 << 30)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert heap.empty(memory, BYTE).size == memory


def test_the_reason_of_a_failure_is_kept_as_far_as_it_fits():
    made = segment()
    assert made.reason == ""
    made.reason = "the disc is full: \N{SNOWMAN}"
    assert made.reason == "the disc is full: \N{SNOWMAN}"
    made.reason = "\N{SNOWMAN}" * REASON
    assert 0 < len(made.reason) <= REASON
    made.reason = "short"
    assert made.reason == "short"


def test_only_arrays_in_the_heap_have_an_offset():
    made = segment()
    heap = Heap(made)
    array = heap.empty(3000, np.dtype(np.int16))
    assert made.offset_of(array) >= made.layout.heap
    assert made.offset_of(array[10:]) == made.offset_of(array) + 20
    assert made.offset_of(np.empty(10)) == -1
    assert made.offset_of(made.view(made.layout.stage, 10, BYTE)) == -1
    assert segment().offset_of(array) == -1
    assert made.offset_of(heap.empty(0, BYTE)) >= made.layout.heap


def test_arrays_have_the_length_and_type_asked_for_and_are_aligned():
    heap = Heap(segment())
    for dtype in (np.bool_, np.int8, np.float16, np.float64, np.longdouble, np.clongdouble):
        array = heap.empty(17, np.dtype(dtype))
        assert (array.dtype, array.shape) == (dtype, (17,))
        assert array.flags.writeable
        assert array.flags.aligned
        assert array.flags.c_contiguous


def test_memory_is_returned_when_the_last_view_of_it_is_gone_and_used_again():
    made = segment()
    heap = Heap(made)
    array = heap.empty(HEAP, BYTE)
    address = made.offset_of(array)
    view = array.reshape(2, -1)[1][::3].view()
    del array
    with pytest.raises(MemoryError, match=f"no {PAGE} contiguous bytes"):
        heap.empty(1, BYTE)
    view[:] = 1
    del view
    again = heap.empty(HEAP, BYTE)
    assert made.offset_of(again) == address


def test_an_array_outlives_its_heap_and_its_segment():
    array = Heap(segment()).empty(1000, BYTE)
    array[:] = 7
    gc.collect()
    assert (array == 7).all()


def test_memory_that_a_cycle_of_garbage_holds_comes_back():
    heap = Heap(segment())
    cycle: list[object] = [heap.empty(HEAP, BYTE)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    heap.empty(HEAP, BYTE)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12 * PAGE), st.integers(0, 100)), max_size=60))
def test_living_arrays_never_overlap_and_all_memory_is_there_in_the_end(steps):
    made = segment()
    heap = Heap(made)
    alive: list[np.ndarray] = []
    for allocate, size, place in steps:
        if allocate:
            try:
                array = heap.empty(size, BYTE)
            except MemoryError:
                continue
            array[:] = len(alive)
            alive.append(array)
        elif alive:
            del alive[place % len(alive)]
            for index, array in enumerate(alive):  # what is written here is not seen there
                array[:] = index
    spans = sorted((made.offset_of(array), array.size) for array in alive)
    for (start, size), (following, _) in itertools.pairwise(spans):
        assert start + max(size, 1) <= following
    for start, size in spans:
        assert made.layout.heap <= start
        assert start + size <= made.size
    array = None
    alive.clear()
    heap.empty(HEAP, BYTE)


def test_several_threads_may_allocate_at_once():
    made = segment(heap=4096 * PAGE)
    heap = Heap(made)
    wrong: list[str] = []

    def work(mark: int) -> None:
        kept: list[np.ndarray] = []
        for turn in range(300):
            array = heap.empty(PAGE * (1 + turn % 3), BYTE)
            array[:] = mark
            kept.append(array)
            if len(kept) > 5 and not (kept.pop(turn % 5) == mark).all():
                wrong.append(f"thread {mark} turn {turn}")

    at_once(work, range(4))
    assert wrong == []
    assert heap.empty(4096 * PAGE, BYTE).size == 4096 * PAGE
