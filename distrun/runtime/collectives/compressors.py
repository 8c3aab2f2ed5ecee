"""The compressors that do not touch tensors in the framework: they choose how elements travel between hosts.

`Compression.int8` and `.int4` send 8 or 4 bits per value, with scales. They round large tensors, and send small ones
unchanged (see `distrun.runtime.operations.wire`). `.int4` has error feedback: it adds what a step's gradients have lost
to the next step's. `.powersgd(rank)`, for gradients only, sends a matrix as two thin ones (see
`distrun.tensor_fusion.low_rank`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distrun.errors import UsageError


class NoneCompressor:
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """`tensor` itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """`tensor` itself."""
        return tensor


class Int8Compressor(NoneCompressor):
    """Sends floating-point tensors between hosts as 8-bit integers with scales. In the framework they stay as they
    are."""


class Int4Compressor(NoneCompressor):
    """Sends floating-point tensors between hosts as powers of two in 4 bits, with scales. In the framework they stay as
    they are."""


@dataclass(frozen=True)
class PowerSGDCompressor(NoneCompressor):
    """Sends the gradient of a matrix as two thin matrices. In the framework it stays as it is. For optimizers only."""

    rank: int
    """The columns of the thin matrices."""

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise UsageError(f"Compression.powersgd({self.rank!r}): the rank must be a whole number greater than 0")
