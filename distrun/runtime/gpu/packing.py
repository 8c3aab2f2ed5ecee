"""The packer: copies many pieces of GPU memory at once, converted and scaled on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distrun.errors import CollectiveError
from distrun.runtime.gpu.driver import Driver
from distrun.tensor_fusion.device_packing import KERNEL, THREADS, Piece, Variant, choose, launches, read_code

__all__ = ["Packer", "Piece"]


@dataclass(frozen=True)
class _On:
    """A stream, as cupy's kernels take it."""

    ptr: int


class Packer:
    """Launches the kernel of packing.cu, one variant of which is compiled when it is first used. Any thread may call."""

    def __init__(self, driver: Driver) -> None:
        self._progress_thread = driver
        self._kernels: dict[tuple[str, str], Any] = {}

    def copy(self, pieces: Sequence[Piece], source: str, target: str, factor: float, stream: int) -> None:
        """Queue on `stream`, for all `pieces`: target[i] = factor * source[i], converted from type `source` to `target`.

        Both are names of types; counts are in elements; addresses are multiples of their element's size unless the elements
        are only copied. A piece's source 0 stands for zeros. Its source may be its target where the types are equal. All of
        it is one launch for each 128 pieces, and needs no memory. The caller is inside `driver.use()`.

        Raises:
            UsageError: the kernel cannot convert or scale these types.
            CollectiveError: the kernel could not be compiled or launched.
        """
        variant = choose(source, target, factor)
        on = _On(stream)
        for table, blocks in launches(pieces, variant, factor):
            try:
                self._kernel(variant)((blocks,), (THREADS,), (table,), stream=on)
            except Exception as error:
                raise CollectiveError(
                    f"the GPU could not copy {len(pieces)} arrays of {source} as {target}: {type(error).__name__}: {error}"
                ) from error

    def _kernel(self, variant: Variant) -> Any:
        kernel = self._kernels.get((variant.source, variant.target))
        if kernel is None:
            made = self._progress_thread.cupy.RawKernel(read_code(), KERNEL, variant.options)
            kernel = self._kernels.setdefault((variant.source, variant.target), made)
        return kernel
