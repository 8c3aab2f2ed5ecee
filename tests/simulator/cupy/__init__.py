"""A simulated GPU under cupy's names: as much of cupy 14 as distrun uses. See README.md one folder up."""

from __future__ import annotations

from cupy import cuda
from cupy.arrays import asarray, asnumpy, empty, from_dlpack, ndarray
from cupy.raw import RawKernel

__version__ = "14.2.0"
__all__ = ["RawKernel", "asarray", "asnumpy", "cuda", "empty", "from_dlpack", "ndarray"]
