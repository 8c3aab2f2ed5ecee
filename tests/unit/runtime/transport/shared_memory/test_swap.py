"""A swap of arrays by C leaves in memory what the steps in Python leave there."""

from __future__ import annotations

import os
import platform

import numpy as np
import pytest
from hypothesis import given, strategies as st
from session.hypothesis_profiles import examples

from distrun import native
from distrun.runtime.operations.reduction import Average, Sum, reduction
from distrun.runtime.transport.shared_memory.doorbell import SEES_STORES_IN_ORDER, Doorbell, new_bell_fd
from distrun.runtime.transport.shared_memory.mailbox import LARGEST, Mailbox
from distrun.runtime.transport.shared_memory.segment import Layout, Segment, new_segment_fd
from distrun.runtime.transport.shared_memory.swap import ANSWERED, ASLEEP, NO_ROOM, SENT, Swap, swap_function

HEADER = b"S\0\0\0\7\0\0\0"


class Peers:
    """Two mailboxes between this rank and a peer, which the test plays."""

    def __init__(self, variant: str) -> None:
        fd = new_segment_fd(Layout(1).heap + (1 << 20))
        self.segment = Segment(fd, os.fstat(fd).st_size, 1)
        os.close(fd)
        self.out, self.into = Mailbox(self.segment, 0), Mailbox(self.segment, 1)
        self.asleep = memoryview(bytearray(64)).cast("q")
        self.bell = Doorbell(new_bell_fd(), self.asleep, 3)
        self.swap = Swap(self.out, self.into, self.bell)
        self.swap._function = swap_function(variant)

    def shift(self, nbytes: int) -> None:
        """Let the next messages begin further on in the rings."""
        for box in (self.out, self.into):
            while box.get() is not None:
                pass
            assert box.put(bytes(nbytes))
            box.get()


@pytest.fixture(params=["avx512", "avx2", "base"])
def peers(request, monkeypatch):
    monkeypatch.delenv(native.SWITCH, raising=False)
    native.library.cache_clear()
    if request.param not in native.variants():
        pytest.skip(f"this machine's processor ({platform.machine()}) has no {request.param}")
    peers = Peers(request.param)
    yield peers
    os.close(peers.bell.fd)
    native.library.cache_clear()


@examples(gate=60, full=500)
@given(
    count=st.one_of(st.integers(0, 40), st.sampled_from([1024, 8191, 8192])),
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
    op=st.sampled_from([Average, Sum]),
    postscale=st.sampled_from([1.0, 1 / 3]),
    shift=st.integers(0, LARGEST),
    answer=st.sampled_from(["the same", "the same", "another operation", "a shorter one", "none"]),
    in_place=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_a_swap_sends_takes_the_answer_and_adds_up(peers, count, dtype, op, postscale, shift, answer, in_place, seed):
    peers.shift(shift)
    how = reduction(dtype.name, op, 2, 1.0, postscale)
    rng = np.random.default_rng(seed)
    own, other = (rng.normal(size=count).astype(dtype) for _ in range(2))
    replies = {
        "the same": HEADER + other.tobytes(),
        "another operation": HEADER[:4] + bytes([8, 0, 0, 0]) + other.tobytes(),
        "a shorter one": HEADER[:7],
        "none": None,
    }
    reply = replies[answer]
    assert reply is None or peers.into.put(reply)
    mine, result = own.copy(), np.full(count, 7, dtype)
    if in_place:
        result = mine
    terms = peers.swap.terms(HEADER, count, dtype, how.factor)
    outcome = peers.swap(terms, mine, result, 3)
    assert peers.out.get() == HEADER + own.tobytes()
    if not SEES_STORES_IN_ORDER:
        assert outcome == ASLEEP
    elif answer == "the same":
        assert outcome == ANSWERED
        expected = np.empty(count, dtype)
        how.combine([own, other], [expected])
        assert result.tobytes() == expected.tobytes()
        assert not peers.into
    else:
        assert outcome == SENT
        assert result.tobytes() == (own if in_place else np.full(count, 7, dtype)).tobytes()
        assert peers.into.get() == reply


def test_a_peer_that_sleeps_is_woken(peers):
    peers.asleep[3] = 1
    array = np.ones(5)
    assert peers.swap(peers.swap.terms(HEADER, 5, array.dtype, 1.0), array, array, 3) == ASLEEP
    assert peers.asleep[3] == (not SEES_STORES_IN_ORDER)  # where bells are always rung, nobody reads it
    assert os.eventfd_read(peers.bell.fd) == 1
    assert peers.out.get() == HEADER + np.ones(5).tobytes()


def test_nothing_is_sent_into_a_full_mailbox(peers):
    while peers.out.put(bytes(LARGEST)):
        pass
    array = np.ones(LARGEST // 8 - 1)
    assert peers.into.put(HEADER + array.tobytes())
    assert peers.swap(peers.swap.terms(HEADER, array.size, array.dtype, 1.0), array, array, 3) == NO_ROOM
    assert array.tolist() == [1.0] * array.size
    assert peers.into.get() == HEADER + array.tobytes()
    while (message := peers.out.get()) is not None:
        assert message == bytes(LARGEST)


@pytest.mark.skipif(not SEES_STORES_IN_ORDER, reason="here the peer is always woken, and the answer taken in Python")
def test_an_array_that_may_only_be_read_is_sent(peers):
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    assert peers.into.put(HEADER + array.tobytes())
    result = np.empty_like(array)
    assert peers.swap(peers.swap.terms(HEADER, 6, array.dtype, 1.0), array, result, 3) == ANSWERED
    assert result.tolist() == [0, 2, 4, 6, 8, 10]


def test_only_scaled_sums_of_plain_floats_are_swapped():
    factors = {
        (dtype, op, prescale): reduction(dtype, op, 2, prescale, 3.0).factor
        for dtype in ("float32", "float16", "int64", "complex64")
        for op in (Sum, Average)
        for prescale in (1.0, 2.0)
    }
    assert {terms: factor for terms, factor in factors.items() if factor is not None} == {
        ("float32", Sum, 1.0): 3.0,
        ("float32", Average, 1.0): 1.5,
    }
