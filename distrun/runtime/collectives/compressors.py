"""The compressors that leave tensors alone here: they say how elements travel between hosts, whatever the framework.

`Compression.int8` and `.int4` send 8 or 4 bits per value, with scales, which round large tensors and leave small ones
alone (see `distrun.runtime.operations.wire`); `.int4` adds what a step has lost of the gradients to those of the next.
For gradients only, `.powersgd(rank)` sends matrices as two thin ones (see `distrun.tensor_fusion.low_rank`).
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
    """Has floating-point tensors travel between hosts as integers of 8 bits with scales; leaves them as they are
    here."""


class Int4Compressor(NoneCompressor):
    """Has floating-point tensors travel between hosts as powers of two in 4 bits, with scales; leaves them as they
    are here."""


@dataclass(frozen=True)
class PowerSGDCompressor(NoneCompressor):
    """Has the gradients of matrices travel as two thin ones; leaves them as they are here. For optimizers only."""

    rank: int
    """The columns of the thin matrices."""

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise UsageError(f"Compression.powersgd({self.rank!r}): the rank must be a whole number greater than 0")
