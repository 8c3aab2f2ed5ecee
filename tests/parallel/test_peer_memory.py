"""The memory of another process is read where the kernel allows it, and only what was asked for."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from distrun.runtime.shared_memory import peer_memory

KERNEL = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MEGABYTE = 1 << 20


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A child, and where 3 MiB of numbers begin in it."""
    code = (
        "import numpy as np; array = (np.arange(3 << 20) % 251).astype(np.uint8);"
        "print(array.ctypes.data, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def test_a_part_of_another_process_is_read_and_nothing_beyond_it(other, readable_processes):
    process, address = other
    room = np.full(2 * MEGABYTE + 2, 255, np.uint8)
    peer_memory.read(process.pid, address + 12_345, room[1:-1])
    assert (room[1:-1] == np.arange(12_345, 12_345 + 2 * MEGABYTE) % 251).all()
    assert room[0] == room[-1] == 255


def test_a_process_that_has_ended_cannot_be_read(other):
    process, address = other
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):
        peer_memory.read(process.pid, address, np.empty(10, np.uint8))


def test_what_is_not_mapped_to_its_end_cannot_be_read():
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as memory:
        pages = np.frombuffer(memory, np.uint8)
        address = peer_memory.address_of(pages)
        del pages
    with pytest.raises(OSError, match=os.strerror(errno.EFAULT)):
        peer_memory.read(os.getpid(), address, np.empty(2 * mmap.PAGESIZE, np.uint8))


def test_without_the_function_in_the_c_library_nothing_can_be_read(monkeypatch):
    monkeypatch.setattr(peer_memory, "_process_vm_readv", None)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        peer_memory.read(os.getpid(), 0, np.empty(1, np.uint8))


def lies_in_huge_pages(advice: int) -> bool:
    """Whether 8 MiB that the kernel was given this advice about are said to lie in huge pages."""
    with mmap.mmap(-1, 8 * MEGABYTE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(advice)
        pages = np.frombuffer(memory, np.uint8)
        pages[:] = 1
        found = peer_memory.is_in_huge_pages(pages)
        del pages
    return found


def test_huge_pages_are_told_from_small_ones():
    assert not lies_in_huge_pages(mmap.MADV_NOHUGEPAGE)
    if KERNEL < (6, 7) or not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("there are no huge pages here, or the kernel does not tell")
    if not any(lies_in_huge_pages(mmap.MADV_HUGEPAGE) for _ in range(20)):
        pytest.skip("the kernel has no huge page free")


def test_without_its_page_tables_a_process_has_no_huge_pages_that_it_knows_of(monkeypatch):
    def refuse(path: str, flags: int) -> int:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "open", refuse)
    assert not lies_in_huge_pages(mmap.MADV_HUGEPAGE)
