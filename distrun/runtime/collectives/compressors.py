"""Compression of what travels between hosts: the compressors that come with distrun, and compressors of the user's own.

The ranks of a host exchange tensors through its memory, or from GPU to GPU, where halving them costs more than it
saves. So the compressors here name a type for the wire and change nothing before a tensor leaves its host:

- `Compression.fp16` and `.bf16` send float32 and float64 in half precision. Tensors on the CPU are summed in full
  precision, within each host and then over the hosts, so results are at least as exact as Horovod's.
- `Compression.int8` and `.int4` send 8 or 4 bits per value, with scales. They round large tensors and leave small ones
  unchanged (see `distrun.runtime.operations.wire`). `.int4` has error feedback: it adds what a step's gradients have
  lost to the next step's.
- `Compression.powersgd(rank)`, for gradients only, sends matrices as two thin ones (see
  `distrun.tensor_fusion.low_rank`).

A compressor of your own is a class with the static methods, or an object with the methods `compress(tensor) -> (tensor,
context)` and `decompress(tensor, context) -> tensor`. It is always called, on the tensors of the framework. JAX, which
traces its functions, does not take one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from distrun.errors import UsageError
from distrun.tensor_fusion.low_rank import name_of_rank


class Compressor(Protocol):
    """The interface of a compressor: a class with these static methods, or an object with these methods."""

    def compress(self, tensor: Any, /) -> tuple[Any, Any]:
        """Return the tensor that is to travel instead of `tensor`, and what `decompress` needs to know."""
        ...

    def decompress(self, tensor: Any, ctx: Any, /) -> Any:
        """Return the tensor again, with its former dtype and shape."""
        ...


class NoneCompressor:
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return `tensor` itself, and None."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return `tensor` itself."""
        return tensor


class _HalfCompressor:
    _dtype: ClassVar[str]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in half precision and its former dtype; `tensor` itself and None if it has no floats."""
        return (_cast(tensor, cls._dtype), tensor.dtype) if "float" in str(tensor.dtype) else (tensor, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor in the dtype `ctx`."""
        return tensor if ctx is None else _cast(tensor, ctx)


class FP16Compressor(_HalfCompressor):
    """Sends floating-point tensors as float16."""

    _dtype = "float16"


class BF16Compressor(_HalfCompressor):
    """Sends floating-point tensors as bfloat16, which has the range of float32."""

    _dtype = "bfloat16"


class Int8Compressor(NoneCompressor):
    """Sends floating-point tensors between hosts as 8-bit integers with scales. Called by hand, it changes nothing."""


class Int4Compressor(NoneCompressor):
    """Sends floating-point tensors between hosts as powers of two in 4 bits, with scales. Called by hand, it changes
    nothing."""


@dataclass(frozen=True)
class PowerSGDCompressor(NoneCompressor):
    """Sends the gradient of a matrix as two thin matrices. Called by hand, it changes nothing. For optimizers only."""

    rank: int
    """The columns of the thin matrices."""

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise UsageError(f"Compression.powersgd({self.rank!r}): the rank must be a whole number greater than 0")


class Compression:
    """The compressors that come with distrun. TensorFlow, Keras and torch take one of your own as well: a class with
    static methods `compress(tensor) -> (tensor, context)` and `decompress(tensor, context) -> tensor`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8Compressor
    int4 = Int4Compressor
    powersgd = PowerSGDCompressor


_WIRE_TYPES: dict[Any, str] = {
    NoneCompressor: "",
    FP16Compressor: "float16",
    BF16Compressor: "bfloat16",
    Int8Compressor: "int8",
    Int4Compressor: "int4",
}
_ALL = "Compression.none, .fp16, .bf16, .int8, .int4 or, for gradients, .powersgd(rank)"


def wire_type(compression: Any, *, of_gradients: bool = False) -> str:
    """Return the type of elements on the wire: empty if they keep their own, as with a compressor of the user's. For
    the gradients of an optimizer it may be the name of an approximation (see `distrun.tensor_fusion.low_rank`).

    Raises:
        UsageError: it has no methods `compress` and `decompress`, or is for gradients only.
    """
    if isinstance(compression, PowerSGDCompressor):
        if not of_gradients:
            raise UsageError(
                f"compression={compression!r} is for the gradients of an optimizer, which makes up for what is lost: "
                "give it to DistributedOptimizer, or use another compression here"
            )
        return name_of_rank(compression.rank)
    if is_builtin(compression):
        return _WIRE_TYPES[compression]
    if not (callable(getattr(compression, "compress", None)) and callable(getattr(compression, "decompress", None))):
        raise UsageError(
            f"compression={compression!r} is not {_ALL}, and has no methods compress and decompress: choose one of "
            "these, or give a compressor of your own, a class or an object that has both"
        )
    return ""


def wire_only(compression: Any, *, of_gradients: bool = False) -> str:
    """Return the same as `wire_type`, for a framework that cannot call compressors of the user's.

    Raises:
        UsageError: it is not one of `Compression`, or is for gradients only.
    """
    if not is_builtin(compression):
        raise UsageError(
            f"compression={compression!r} is not {_ALL}, and other compressors are called for TensorFlow, Keras and "
            "torch only: choose one of these"
        )
    return wire_type(compression, of_gradients=of_gradients)


def is_builtin(compression: Any) -> bool:
    """Return whether a compressor comes with distrun. A subclass is the user's."""
    if isinstance(compression, type):
        return compression in _WIRE_TYPES
    return isinstance(compression, PowerSGDCompressor)


def compressed(compression: Any, tensors: Sequence[Any], reduce: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
    """Return `reduce(tensors)`. A compressor of the user's chooses what travels instead of the dense tensors."""
    if is_builtin(compression):
        return list(reduce(list(tensors)))
    pairs = [(tensor, None) if is_sparse_or_none(tensor) else compression.compress(tensor) for tensor in tensors]
    reduced = reduce([tensor for tensor, _ in pairs])
    return [
        result if is_sparse_or_none(result) else compression.decompress(result, context)
        for result, (_, context) in zip(reduced, pairs, strict=True)
    ]


def is_sparse_or_none(gradient: Any) -> bool:
    """Return whether a gradient is missing, or a tf.IndexedSlices (a class that this module does not import)."""
    return gradient is None or type(gradient).__name__ == "IndexedSlices"


def _cast(tensor: Any, dtype: Any) -> Any:
    """Return a tensor of any framework in another dtype, given by its name or as the framework's own object."""
    tensorflow, torch = sys.modules.get("tensorflow"), sys.modules.get("torch")
    if tensorflow is not None and tensorflow.is_tensor(tensor):
        return tensorflow.cast(tensor, dtype)
    if torch is not None and torch.is_tensor(tensor):
        return tensor.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    if dtype == "bfloat16" and hasattr(tensor, "__array_interface__"):  # numpy has none of its own
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    return tensor.astype(dtype)
