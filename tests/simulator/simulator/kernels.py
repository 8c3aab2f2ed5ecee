"""CUDA kernels compiled for the CPU: all threads of all blocks in order, without __syncthreads and shared memory."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_HERE = Path(__file__).parents[1]
_PRELUDE = _HERE / "kernel_prelude.h"
_PASSED = ("-D", "-U", "-std=", "--std=")  # options of NVRTC that a C++ compiler takes, too
_LAUNCHER = """
#include <cstddef>
#include <type_traits>
#include <utility>

template <class... A, std::size_t... I>
static void simulated_call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}

template <class... A>
static void simulated_run(void (*kernel)(A...), void** arguments, const unsigned* grid, const unsigned* block) {
    gridDim.x = grid[0]; gridDim.y = grid[1]; gridDim.z = grid[2];
    blockDim.x = block[0]; blockDim.y = block[1]; blockDim.z = block[2];
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
    for (threadIdx.z = 0; threadIdx.z < block[2]; ++threadIdx.z)
    for (threadIdx.y = 0; threadIdx.y < block[1]; ++threadIdx.y)
    for (threadIdx.x = 0; threadIdx.x < block[0]; ++threadIdx.x)
        simulated_call(kernel, arguments, std::index_sequence_for<A...>{});
}

template <class... A>
static int simulated_sizes_of(void (*)(A...), std::size_t* sizes) {
    const std::size_t all[] = {sizeof(A)..., 0};
    for (std::size_t i = 0; i < sizeof...(A); ++i) sizes[i] = all[i];
    return sizeof...(A);
}

extern "C" void simulated_launch(void** arguments, const unsigned* grid, const unsigned* block) {
    simulated_run(KERNEL, arguments, grid, block);
}

extern "C" int simulated_sizes(std::size_t* sizes) { return simulated_sizes_of(KERNEL, sizes); }
"""
_MOST_ARGUMENTS = 256
_MOST_BYTES = 32764  # of arguments, since CUDA 12.1
_numbers = itertools.count()


class Kernel:
    """A compiled kernel. Any thread may run it: the CUDA variables of the prelude are per thread."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self._launch = loaded.simulated_launch
        self._launch.restype = None
        sizes = (ctypes.c_size_t * _MOST_ARGUMENTS)()
        self.sizes: list[int] = list(sizes[: loaded.simulated_sizes(sizes)])
        """The size of each parameter in bytes."""

    def check(self, name: str, arguments: Sequence[np.ndarray[Any, Any]]) -> None:
        """Check the arguments' sizes: CUDA would read whatever lies behind one that is too small.

        Raises:
            TypeError: arguments do not fit the parameters.
        """
        given = [argument.nbytes for argument in arguments]
        if given != self.sizes:
            raise TypeError(f"kernel {name} has parameters of {self.sizes} bytes, and was given {given}")
        if sum(given) > _MOST_BYTES:
            raise TypeError(f"kernel {name} has {sum(given)} bytes of parameters, and CUDA takes {_MOST_BYTES}")

    def run(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[np.ndarray[Any, Any]]) -> None:
        """Run all threads, now."""
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(*(argument.ctypes.data for argument in arguments))
        self._launch(pointers, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block))


def compile_kernel(code: str, name: str, options: tuple[str, ...]) -> Kernel:
    """Return the kernel `name` of CUDA source `code`, from the cache or from the compiler.

    Raises:
        RuntimeError: the compiler refuses; with what it says.
    """
    flags = [option.replace("--std=", "-std=") for option in options if option.startswith(_PASSED)]
    if not any(flag.startswith("-std=") for flag in flags):
        flags.append("-std=c++17")
    source = f'#include "{_PRELUDE.name}"\n#line 1 "{name}.cu"\n{code}\n#define KERNEL {name}\n{_LAUNCHER}'
    digest = hashlib.sha256("\0".join([source, _PRELUDE.read_text(), *flags]).encode()).hexdigest()[:32]
    library = _folder() / f"{name}-{digest}.so"
    if not library.exists():
        _compile(source, flags, library)
    return Kernel(library)


def _folder() -> Path:
    told = os.environ.get("SIMULATED_KERNEL_CACHE")
    folder = Path(told) if told else Path(tempfile.gettempdir()) / f"simulated-gpu-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def _compile(source: str, flags: Sequence[str], library: Path) -> None:
    """Compile. Several ranks may do so at once, each under a name of its own, and the last one's stays."""
    unfinished = library.with_suffix(f".{os.getpid()}.{threading.get_ident()}.{next(_numbers)}")
    command = [
        "g++",
        "-O1",
        "-fwrapv",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        *flags,
        "-I",
        str(_HERE),
        "-x",
        "c++",
        "-",
        "-o",
        str(unfinished),
    ]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the kernel cannot be compiled:\n{done.stderr}")
    unfinished.rename(library)
