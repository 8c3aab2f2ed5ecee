"""Compression of tensors between hosts, for the frameworks that run graphs.

`Compression.fp16` and `Compression.bf16` only affect data between hosts: float32 and float64 are sent in half
precision. The ranks of a host are added before, and the hosts after that, in full precision. Your own compressor - a
class with the static methods `compress(tensor) -> (tensor, context)` and `decompress(tensor, context) -> tensor` - is
always called, on the tensors of the framework.

The others, `Compression.int8`, `.int4` and `.powersgd(rank)`, are in `distrun.runtime.collectives.compressors`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from distrun.errors import UsageError
from distrun.runtime.collectives.compressors import (
    Int4Compressor,
    Int8Compressor,
    NoneCompressor as NoneCompressor,
    PowerSGDCompressor,
)
from distrun.tensor_fusion.low_rank import name_of_rank


class Compressor(Protocol):
    """The interface of a compressor: a class with these static methods, or an object with these methods."""

    def compress(self, tensor: Any, /) -> tuple[Any, Any]:
        """Return the tensor to send in place of `tensor`, and a context for `decompress`."""
        ...

    def decompress(self, tensor: Any, ctx: Any, /) -> Any:
        """Return the decompressed tensor, of the original dtype and shape."""
        ...


class FP16Compressor:
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in float16, and its original dtype."""
        return _encode(tensor, "float16")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its own dtype."""
        return _decode(tensor, ctx)


class BF16Compressor:
    """Sends floating-point tensors as bfloat16, which has the range of float32."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in bfloat16, and its original dtype."""
        return _encode(tensor, "bfloat16")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in its own dtype."""
        return _decode(tensor, ctx)


class Compression:
    """The compressors that come with distrun. TensorFlow and Keras take one of your own as well: a class with static
    methods `compress(tensor) -> (tensor, context)` and `decompress(tensor, context) -> tensor`."""

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
_ALL = "Compression.none, .fp16, .bf16, .int8, .int4 or, for gradients, .powersgd(rank)"


def wire_type(compression: Any, *, of_gradients: bool = False) -> str:
    """Return the type of elements on the wire for `compression`.

    It is "" for their own type, and for a user's compressor. For the gradients of an optimizer, it may be the name of
    an approximation (see `distrun.tensor_fusion.low_rank`).

    Raises:
        UsageError: `compression` has no methods `compress` and `decompress`, or is for gradients only.
    """
    if isinstance(compression, PowerSGDCompressor):
        if not of_gradients:
            raise UsageError(
                f"compression={compression!r} is for the gradients of an optimizer, which makes up for what is lost: "
                "use another compression here"
            )
        return name_of_rank(compression.rank)
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise UsageError(
            f"compression={compression!r} is not {_ALL}, and has no methods compress and decompress: choose one of "
            "these, or give a compressor of your own"
        )
    return _OF_THE_WIRE[compression] if is_builtin(compression) else ""


def wire_only(compression: Any, *, of_gradients: bool = False) -> str:
    """Return the result of `wire_type`, for callers that do not support users' compressors.

    Raises:
        UsageError: `compression` is not one of `Compression`.
    """
    if not is_builtin(compression):
        raise UsageError(
            f"compression={compression!r} is not {_ALL}, and other compressors are called for TensorFlow, Keras and "
            "torch only: choose one of these"
        )
    return wire_type(compression, of_gradients=of_gradients)


def is_builtin(compression: Any) -> bool:
    """Return whether `compression` is one of distrun's. A subclass of one is not."""
    if isinstance(compression, type):
        return compression in _OF_THE_WIRE
    return isinstance(compression, PowerSGDCompressor)


def compressed(compression: Any, tensors: Sequence[Any], reduce: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
    """Return `reduce(tensors)`. A user's compressor is applied to dense tensors before, and undone after that."""
    if is_builtin(compression):
        return list(reduce(list(tensors)))
    pairs = [(tensor, None) if is_sparse_or_none(tensor) else compression.compress(tensor) for tensor in tensors]
    reduced = reduce([tensor for tensor, _ in pairs])
    return [
        result if is_sparse_or_none(result) else compression.decompress(result, context)
        for result, (_, context) in zip(reduced, pairs, strict=True)
    ]


def is_sparse_or_none(gradient: Any) -> bool:
    """Return whether `gradient` is None or tf.IndexedSlices. TensorFlow is not imported here, so compare by name."""
    return gradient is None or type(gradient).__name__ == "IndexedSlices"


# Casting, whatever the framework --------------------------------------------------------------------------------------


def _encode(tensor: Any, dtype: str) -> tuple[Any, Any]:
    return (_cast(tensor, dtype), tensor.dtype) if "float" in str(tensor.dtype) else (tensor, None)


def _decode(tensor: Any, ctx: Any) -> Any:
    return tensor if ctx is None else _cast(tensor, ctx)


def _cast(tensor: Any, dtype: Any) -> Any:
    tensorflow, torch = sys.modules.get("tensorflow"), sys.modules.get("torch")
    if tensorflow is not None and tensorflow.is_tensor(tensor):
        return tensorflow.cast(tensor, dtype)
    if torch is not None and torch.is_tensor(tensor):
        return tensor.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    if dtype == "bfloat16" and hasattr(tensor, "__array_interface__"):  # numpy itself has no bfloat16
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return tensor.astype(dtype)
