"""The memory that communication holds is known by kind, as long as its owner lives."""

import gc

import numpy as np
import pytest

import distrun
from distrun.runtime.gpu import buffers
from distrun.runtime.gpu.buffers import FUSION_BUFFERS, GRADIENT_BUCKETS, note_held
from distrun.runtime.transport.shared_memory.segment import Heap, Layout, Segment, new_segment_fd
from distrun.runtime.world.capabilities import communication_memory


class Owner:
    """An owner that is equal to all others, and has no hash, as arrays."""

    def __eq__(self, other):
        return True

    __hash__ = None


@pytest.fixture(autouse=True)
def _nothing_noted(monkeypatch):
    monkeypatch.setattr(buffers, "_notes", {})


def test_bytes_are_summed_by_kind_until_their_owner_is_gone():
    one, two = Owner(), Owner()
    note_held(GRADIENT_BUCKETS, 100, one)
    note_held(GRADIENT_BUCKETS, 10, two)
    note_held(FUSION_BUFFERS, 1, two)
    assert communication_memory() == {GRADIENT_BUCKETS: 110, FUSION_BUFFERS: 1}
    del two
    gc.collect()
    assert communication_memory() == {GRADIENT_BUCKETS: 100}


def test_what_is_noted_again_is_replaced():
    owner = np.empty(0)
    note_held(FUSION_BUFFERS, 100, owner)
    note_held(FUSION_BUFFERS, 300, owner)
    assert communication_memory() == {FUSION_BUFFERS: 300}


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(TypeError, match="weak reference"):
        note_held(FUSION_BUFFERS, 100, 7)


def test_the_end_of_an_owner_does_not_concern_the_next_one_at_its_place():
    first, second = Owner(), Owner()
    note_held(FUSION_BUFFERS, 1, first)
    ((key, (reference, _)),) = buffers._notes.items()
    forget = reference.__callback__
    buffers._notes[key] = buffers.weakref.ref(second), 2
    forget(reference)
    assert communication_memory() == {FUSION_BUFFERS: 2}


def test_the_memory_that_ranks_share_counts_while_arrays_in_it_live():
    size = Layout(1).heap + (1 << 26)
    heap = Heap(Segment(new_segment_fd(size), size, 1))
    assert heap.used == 0
    array = heap.empty(5000, np.dtype(np.uint8))
    kept = array[10:]
    assert heap.used == 8192  # whole pages
    del array
    assert heap.used == 8192
    del kept
    assert heap.used == 0


def test_it_is_asked_for_by_distruns_own_name():
    assert distrun.communication_memory is communication_memory
