"""Compression of what travels between hosts.

Within a host tensors travel through its memory, or from GPU to GPU, where halving them costs more than it saves.
`Compression.fp16` and `Compression.bf16` leave them unchanged there. Only between hosts do float32 and float64 travel
in half precision. Tensors on the CPU are summed in full precision, within each host before that and over the hosts
after it, so results are at least as exact as Horovod's. A compressor of your own, a class with static methods or an
object with methods `compress(tensor) -> (tensor, context)` and `decompress(tensor, context) -> tensor`, is always
called.

The others, `Compression.int8`, `.int4` and `.powersgd(rank)`, are in `distrun.runtime.collectives.compressors`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from distrun.errors import UsageError
from distrun.runtime.collectives.compressors import (
    Int4Compressor,
    Int8Compressor,
    NoneCompressor as NoneCompressor,
    PowerSGDCompressor,
)


class Compressor(Protocol):
    """The interface of a compressor: a class with these static methods, or an object with these methods."""

    def compress(self, tensor: Tensor, /) -> tuple[Tensor, Any]:
        """Return the tensor to send instead of `tensor`, and a context for `decompress`."""
        ...

    def decompress(self, tensor: Tensor, ctx: Any, /) -> Tensor:
        """Return the tensor with its original dtype and shape."""
        ...


def _encode(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Any]:
    return (tensor.to(dtype), tensor.dtype) if tensor.is_floating_point() else (tensor, None)


def _decode(tensor: Tensor, ctx: Any) -> Tensor:
    return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor:
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor in float16."""
        return _encode(tensor, torch.float16)

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor in its own dtype."""
        return _decode(tensor, ctx)


class BF16Compressor:
    """Sends floating-point tensors as bfloat16, which has the range of float32."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor in bfloat16."""
        return _encode(tensor, torch.bfloat16)

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor in its own dtype."""
        return _decode(tensor, ctx)


class Compression:
    """The compressors that come with distrun. You can give one of your own as well: a class with static methods
    `compress(tensor) -> (tensor, context)` and `decompress(tensor, context) -> tensor`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    int4 = Int4Compressor
    powersgd = PowerSGDCompressor


_OF_THE_WIRE: dict[Any, str] = {
    NoneCompressor: "",
    FP16Compressor: "float16",
    BF16Compressor: "bfloat16",
    Int8Compressor: "int8",
    Int4Compressor: "int4",
}


def low_rank(compressor: Compressor) -> int:
    """Return the rank of PowerSGD's matrices, or 0 for other compressors."""
    return compressor.rank if isinstance(compressor, PowerSGDCompressor) else 0


def wire_type(compressor: Compressor) -> str | None:
    """The type of elements on the wire, empty for their own, or None when `compressor` is not one of those that concern
    only what leaves the host: the user's, a subclass, and PowerSGD's.

    Raises:
        UsageError: this is no compressor.
    """
    if isinstance(compressor, type) and compressor in _OF_THE_WIRE:
        return _OF_THE_WIRE[compressor]
    if not all(callable(getattr(compressor, method, None)) for method in ("compress", "decompress")):
        raise UsageError(
            f"compression={compressor!r} has no methods compress and decompress: give distrun.Compression.none, .fp16, "
            ".bf16, .int8, .int4, .powersgd(rank), or a class or an object that has both"
        )
    return None
