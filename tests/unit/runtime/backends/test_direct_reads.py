"""A rank shows the others, for reading, large arrays in huge pages that the kernel lets them read."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from distrun.runtime.backends.direct_reads import SMALLEST, DirectReads
from distrun.runtime.shared_memory import peer_memory


@pytest.fixture
def reads(monkeypatch) -> DirectReads:
    """The first rank of two, all of whose arrays lie in huge pages."""
    monkeypatch.setattr(peer_memory, "is_in_huge_pages", lambda _: True)
    return DirectReads(SimpleNamespace(own=0, size=2))


def test_large_arrays_are_shown_where_they_are(reads):
    source, target = np.zeros(SMALLEST, np.uint8), np.zeros(SMALLEST, np.uint8)
    assert reads.shown(source, target) == (source.ctypes.data, target.ctypes.data)


def test_smaller_ones_are_not_shown(reads):
    array = np.zeros(SMALLEST - 1, np.uint8)
    assert reads.shown(array, array) == (0, 0)


def test_those_in_small_pages_are_not_shown(reads, monkeypatch):
    monkeypatch.setattr(peer_memory, "is_in_huge_pages", lambda _: False)
    array = np.zeros(SMALLEST, np.uint8)
    assert reads.shown(array, array) == (0, 0)


def test_memory_that_a_driver_has_mapped_is_not_shown(reads, monkeypatch):
    """The kernel's own pages for the clock stand for a driver's: this process may read them, and no other may."""
    mapped = next((line for line in Path("/proc/self/maps").read_text().splitlines() if "[vvar]" in line), None)
    if mapped is None:
        pytest.skip("this machine has no such pages")
    start = int(mapped.split("-")[0], 16)
    theirs = np.frombuffer((ctypes.c_uint8 * 64).from_address(start), np.uint8)
    monkeypatch.setattr("distrun.runtime.backends.direct_reads.SMALLEST", 0)
    own = np.zeros(64, np.uint8)
    assert reads.shown(own, own) == (own.ctypes.data, own.ctypes.data)
    assert reads.shown(theirs, own) == (0, 0)
    assert reads.shown(own, theirs) == (0, 0)
