"""The kernels of quantising.cu, compiled on first use and launched on a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrun.errors import CollectiveError
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.packing import StreamArgument
from distrun.tensor_fusion.device_quantisation import (
    ADD_UP,
    QUANTISE,
    THREADS,
    Addend,
    Source,
    adding_up,
    options,
    quantising,
    read_code,
)

BITS = {"int8": 8, "int4": 4}
"""The number of bits of a code, by the type on the wire."""


class Kernels:
    """Launches the kernels on one GPU. The caller is inside `driver.use`. Methods raise `CollectiveError`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._compiled: dict[tuple[str, str], Any] = {}

    def quantise(
        self, wire: str, sources: Sequence[Source], raw: int, factor: float, residuals: tuple[int, int], stream: int
    ) -> None:
        """Quantise numbers in up to `PIECES` places. For the arguments see `quantising`."""
        self._launch(QUANTISE, wire, *quantising(sources, raw, factor, residuals), stream)

    def add_up(self, wire: str, addends: Sequence[Addend], count: int, out: int, factor: float, stream: int) -> None:
        """Restore the arrays of `addends`, and add them in this order. For the arguments see `adding_up`."""
        for table, blocks in adding_up(addends, count, out, factor):
            self._launch(ADD_UP, wire, table, blocks, stream)

    def _launch(self, name: str, wire: str, table: NDArray[np.void], blocks: int, stream: int) -> None:
        try:
            kernel = self._compiled.get((name, wire))
            if kernel is None:
                kernel = self._driver.cupy.RawKernel(read_code(), name, options(BITS[wire]))
                self._compiled[name, wire] = kernel
            kernel((blocks,), (THREADS,), (table,), stream=StreamArgument(stream))
        except Exception as error:
            raise CollectiveError(
                f"the GPU could not {name} numbers as {wire}: {type(error).__name__}: {error}"
            ) from error
