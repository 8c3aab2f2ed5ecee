"""Another process's own memory, read by `process_vm_readv`, and what pages an array of ours lies in.

The kernel lets a process read another one of its user if it may also debug it. It may not where Yama restricts that
(`ptrace_scope` 1 and more), where a container's seccomp profile refuses the call (Docker's before Linux 4.8), or where
the other has made itself undumpable; and process ids mean nothing in another container's process namespace. Nobody can
tell but by trying.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

_PAGE = os.sysconf("SC_PAGE_SIZE")

# ioctl PAGEMAP_SCAN of Linux 6.7 on /proc/self/pagemap, and its struct pm_scan_arg: size, flags, start, end, walk_end,
# vec, vec_len, max_pages, and four masks of categories (inverted, all of, any of, returned).
_SCAN = 0xC0606610
_SCAN_ARGUMENT = struct.Struct("12Q")
_PAGE_IS_HUGE = 1 << 6
_REGION_WORDS = 3  # of struct page_region: start, end, categories


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _system_call() -> Any:
    """Return `process_vm_readv`, or None where the C library has none. It is called without the interpreter's lock."""
    with suppress(AttributeError):
        function = ctypes.CDLL(None, use_errno=True).process_vm_readv
        vectors = ctypes.POINTER(_Vector)
        function.argtypes = [ctypes.c_int, vectors, ctypes.c_ulong, vectors, ctypes.c_ulong, ctypes.c_ulong]
        function.restype = ctypes.c_ssize_t
        return function
    return None


_process_vm_readv = _system_call()


def address_of(array: NDArray[Any]) -> int:
    """Return where a contiguous array begins in this process's memory."""
    address: int = array.__array_interface__["data"][0]
    return address


def read(process: int, address: int, target: NDArray[Any]) -> None:
    """Fill a contiguous array with what lies at `address` in another process, and read nothing beyond.

    Raises:
        OSError: this is not allowed, the process has ended, or the memory is none that can be read so.
    """
    if _process_vm_readv is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    place, left = address_of(target), target.nbytes
    while left:
        done = _process_vm_readv(process, _Vector(place, left), 1, _Vector(address, left), 1, 0)
        if done <= 0:
            number = ctypes.get_errno() if done < 0 else errno.EFAULT
            raise OSError(number, os.strerror(number))
        place, address, left = place + done, address + done, left - done


def is_in_huge_pages(array: NDArray[Any]) -> bool:
    """Whether the middle of an array lies in a huge page; False also where the kernel cannot tell.

    For each page of 4 KiB the kernel looks up and holds a record that no cache has, which takes longer than to copy the
    page. numpy asks for huge pages from 4 MB, torch with THP_MEM_ALLOC_ENABLE=1.
    """
    page = (address_of(array) + array.nbytes // 2) // _PAGE * _PAGE
    region = (ctypes.c_uint64 * _REGION_WORDS)()
    vector = ctypes.addressof(region)
    argument = _SCAN_ARGUMENT.pack(
        _SCAN_ARGUMENT.size, 0, page, page + _PAGE, 0, vector, 1, 0, 0, _PAGE_IS_HUGE, 0, _PAGE_IS_HUGE
    )
    try:
        pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        regions: int = fcntl.ioctl(pages, _SCAN, bytearray(argument))
        return regions == 1
    except OSError:
        return False
    finally:
        os.close(pages)
