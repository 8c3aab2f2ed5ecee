"""Swapping: send an array to a peer, take the peer's, and add them up, in one call of C.

This is `Mailbox.put`, `Doorbell.ring`, some looks at the other mailbox, `Mailbox.get` and a sum. In Python they take
most of the time of an operation on small arrays. Offers without arrays are swapped as arrays of no elements. An answer
that does not come at once, or is another message than expected, is left to Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from distrun.native import library, variants
from distrun.runtime.operations.handle import Flat
from distrun.runtime.transport.shared_memory.doorbell import Doorbell
from distrun.runtime.transport.shared_memory.mailbox import Mailbox
from distrun.runtime.transport.shared_memory.segment import RING

NO_ROOM, SENT, ANSWERED, ASLEEP = -1, 0, 1, 2
"""The outcomes of a swap, as swap.c numbers them: it has sent nothing; it has sent the message, and no answer has come
so far; it has taken the answer, and written the result; it has sent the message to a peer that has to be woken."""

SwapFunction = Callable[[Flat, Flat, int], int]
"""Sends an array, looks for the answer up to so many times, and writes the result. Returns the outcome."""
Prepare = Callable[[bytes, int, np.dtype[Any], float], SwapFunction]
"""Makes the function for one operation: see `Swap.prepare`."""

_Memory = ctypes.c_char * 0
_NOWHERE = ctypes.addressof(_nothing := _Memory())  # the address of an array without elements


class Terms(ctypes.Structure):
    """The terms of repeated swaps: `struct swap` of swap.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("out_head", "out_tail", "in_head", "in_tail", "out", "in_", "asleep")),
        *((name, ctypes.c_int64) for name in ("ring", "header", "nbytes", "is_double", "looks")),
        ("factor", ctypes.c_double),
    )


class Swap:
    """The two mailboxes between this rank and a peer."""

    def __init__(self, out: Mailbox, into: Mailbox, bell: Doorbell) -> None:
        """`bell` is the peer's."""
        self._memory = out, into, bell  # whose addresses are in `Terms`
        self._bell = bell
        self._function = swap_function(variants()[0])

    def prepare(self, header: bytes, count: int, dtype: np.dtype[Any], factor: float) -> SwapFunction:
        """Return the function that swaps `count` elements, float32 or float64, and multiplies their sum by `factor`.

        `header`: the first 8 bytes of the message and of the answer.
        """
        return partial(self, self.terms(header, count, dtype, factor))

    def terms(self, header: bytes, count: int, dtype: np.dtype[Any], factor: float) -> Terms:
        out, into, bell = self._memory
        return Terms(
            *out.addresses[:2], *into.addresses[:2], out.addresses[2], into.addresses[2], bell.address,
            RING, int.from_bytes(header, "little"), count * dtype.itemsize, dtype == np.float64, 0, factor,
        )  # fmt: skip

    def __call__(self, terms: Terms, array: Flat, result: Flat, looks: int) -> int:
        """Send an array, look for the answer up to `looks` times, and write the result. Returns `NO_ROOM`, `SENT`,
        `ANSWERED` or `ASLEEP`."""
        assert array.nbytes == result.nbytes == terms.nbytes
        terms.looks = looks
        address = _address(array) if array.nbytes else _NOWHERE
        outcome = self._function(terms, address, address if result is array else _address(result))
        if outcome == ASLEEP:
            self._bell.force()
        return outcome  # type: ignore[no-any-return]


def swap_function(variant: str) -> Any:
    """Return the function for a set of instructions, or None without a library.

    It keeps the interpreter's lock, as it returns soon.
    """
    kernels = library()
    if kernels is None:
        return None
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.POINTER(Terms), ctypes.c_void_p, ctypes.c_void_p)
    return prototype((f"swap_{variant}", kernels))


def can_swap() -> bool:
    """Return whether there is a library with the function."""
    return swap_function(variants()[0]) is not None


def _address(array: Flat) -> int:
    if array.flags.writeable:
        return ctypes.addressof(_Memory.from_buffer(array.data))  # a quarter of the time of the other way
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]
