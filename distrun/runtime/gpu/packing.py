"""The packer: copies many pieces of GPU memory with one launch, and converts and scales them on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distrun.errors import CollectiveError
from distrun.runtime.gpu.driver import Driver
from distrun.tensor_fusion.device_packing import KERNEL, THREADS, Piece, Variant, choose_variant, launches, read_code

__all__ = ["Packer", "Piece"]


@dataclass(frozen=True)
class _StreamArgument:
    """A stream in the form in which cupy's kernels take it."""

    ptr: int


class Packer:
    """Launches the kernel of packing.cu, whose variants are compiled when they are first used. Any thread may call."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._kernels: dict[tuple[str, str], Any] = {}

    def copy(self, pieces: Sequence[Piece], source: str, target: str, factor: float, stream: int) -> None:
        """Queue on `stream`, for all `pieces`: target[i] = factor * source[i], converted from type `source` to
        `target`.

        Takes one launch for every 128 pieces, and no memory. The caller is inside `driver.use()`.

        Args:
            pieces: counts are in elements; addresses must be multiples of the element's size unless elements are only
                copied. A source of 0 stands for zeros. A piece's source may be its target if the types are equal.
            source: the name of the element type in the sources.
            target: the name of the element type in the targets.

        Raises:
            UsageError: the kernel cannot convert or scale these types.
            CollectiveError: the kernel could not be compiled or launched.
        """
        variant = choose_variant(source, target, factor)
        stream_argument = _StreamArgument(stream)
        for table, blocks in launches(pieces, variant, factor):
            try:
                self._kernel(variant)((blocks,), (THREADS,), (table,), stream=stream_argument)
            except Exception as error:
                raise CollectiveError(
                    f"the GPU could not copy {len(pieces)} arrays of {source} as {target}: {type(error).__name__}: "
                    f"{error}"
                ) from error

    def _kernel(self, variant: Variant) -> Any:
        kernel = self._kernels.get((variant.source, variant.target))
        if kernel is None:
            made = self._driver.cupy.RawKernel(read_code(), KERNEL, variant.options)
            kernel = self._kernels.setdefault((variant.source, variant.target), made)
        return kernel
