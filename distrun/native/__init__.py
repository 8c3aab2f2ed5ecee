"""Kernels in C for what takes numpy many passes or calls (quantisation, conversion of half precision, packing), or
Python many calls (the swap of two small arrays).

They are optional, and Python's code is their specification: both have the same results, bit for bit (a NaN may be
another NaN). A caller asks a `Kernel` first and goes on with numpy if that returns False, as it does without a library
for this machine and with DISTRUN_NATIVE=0. `scripts/packaging/native` compiles a library for each architecture. It
calls nothing outside itself, so it serves every Python and every C library.

A kernel computes on the arrays it is given and returns: it keeps no state, allocates nothing, and never sleeps.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SWITCH = "DISTRUN_NATIVE"
FOLDER = Path(__file__).parent
_VARIANTS: dict[str, dict[str, set[str]]] = {
    "x86_64": {
        "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "f16c", "bmi2"},
        "avx2": {"avx2", "f16c", "bmi2"},
    }
}
"""The sets of instructions beyond the `BASE` that kernels are compiled for on an architecture, the best first, with the
flags of a processor that has them."""
BASE = "base"


class NoLibraryError(Exception):
    """Kernels cannot be used, for the reason given."""


def path(machine: str) -> Path:
    """Return the path of the library for an architecture, as `platform.machine` names it."""
    return FOLDER / f"kernels-{machine}.so"


def sources_digest() -> str:
    """Return the digest of the source files, which a library carries with it, or "" where there are none."""
    contents = b"".join(file.read_bytes() for file in sorted(FOLDER.glob("*.[ch]")))
    return hashlib.sha256(contents).hexdigest() if contents else ""


@cache
def variants() -> list[str]:
    """Return the sets of instructions that this machine's processor has, the best first."""
    known = _VARIANTS.get(platform.machine(), {})
    flags: list[str] = []
    if known:
        with open("/proc/cpuinfo") as lines:
            flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return [*(name for name, needed in known.items() if needed.issubset(flags)), BASE]


def load() -> ctypes.CDLL:
    """Return the library for this machine.

    Raises:
        NoLibraryError: there is none, it does not load, or it was compiled from other sources.
    """
    if os.environ.get(SWITCH) == "0":  # read here, as `contract.settings` needs numpy, which the doctor does without
        raise NoLibraryError(f"{SWITCH}=0")
    file = path(platform.machine())
    if not file.exists():
        raise NoLibraryError(f"there is none for {platform.machine()} in this installation")
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise NoLibraryError(f"the library cannot be loaded: {error}") from None
    sources = sources_digest()  # of a checkout: other installations do not have them
    if sources and sources.encode() != (ctypes.c_char * len(sources)).in_dll(library, "digest").value:
        raise NoLibraryError("the library was compiled from other sources: run scripts/packaging/native")
    return library


@cache
def library() -> ctypes.CDLL | None:
    """Return the library, loaded once in a process, or None if there is none to be used."""
    try:
        return load()
    except NoLibraryError:
        return None


def state() -> str:
    """Return whether there are kernels for this machine, in words."""
    try:
        load()
    except NoLibraryError as error:
        return f"no kernels in C ({error})"
    return f"kernels in C ({variants()[0]})"


class Kernel:
    """A function of the library that takes flat arrays of given types, and their number of elements last."""

    def __init__(self, name: str, types: str) -> None:
        """`types` has numpy's character for the type of each array."""
        self._name = name
        self._types = types

    def function(self, variant: str) -> Any:
        """Return the function for a set of instructions, or None: without a library, and for float16 without such
        instructions."""
        function = getattr(library(), f"{self._name}_{variant}", None)
        if function is not None:
            function.argtypes = [*(ctypes.c_void_p for _ in self._types), ctypes.c_int64]
            function.restype = None
        return function

    @cached_property
    def best(self) -> Any:
        """The function for this machine's best set of instructions, or None."""
        return self.function(variants()[0])

    def __call__(self, count: int, *arrays: np.ndarray[Any, Any] | None) -> bool:
        """Compute, and return True. Return False, with nothing done, if there is no such function, or if an array has
        another type or is not contiguous. An array that is None is NULL to the function."""
        function = self.best
        if function is None:
            return False
        addresses: list[int | None] = []
        for array, char in zip(arrays, self._types, strict=True):
            if array is None:
                addresses.append(None)
            elif array.dtype.char == char and array.flags.c_contiguous:
                addresses.append(array.__array_interface__["data"][0])
            else:
                return False
        function(*addresses, count)
        return True
