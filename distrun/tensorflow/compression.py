"""Compression of what travels between hosts.

`Compression.fp16` and `Compression.bf16` concern only what leaves a host; see `distrun.graphs.compression`. A
compressor of your own - a class with the static methods `compress(tensor) -> (tensor, context)` and
`decompress(tensor, context) -> tensor` - is called always, for the dense tensors of each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from distrun.errors import UsageError
from distrun.graphs import compression as any_framework


class Compressor(Protocol):
    """The interface of a compressor: a class with these static methods, or an object with these methods."""

    def compress(self, tensor: Any, /) -> tuple[Any, Any]:
        """Return the tensor that is to travel instead of `tensor`, and what `decompress` needs to know."""
        ...

    def decompress(self, tensor: Any, ctx: Any, /) -> Any:
        """The tensor again, of the dtype and shape it had."""
        ...


class WireCompressor(any_framework.Compressor):
    """A compressor that comes with distrun. Called by others, it casts floating-point tensors."""

    def compress(self, tensor: Any) -> tuple[tf.Tensor, Any]:
        """The tensor in half precision, and the dtype it had."""
        given = tf.convert_to_tensor(tensor)
        if not self.wire or not given.dtype.is_floating:
            return given, None
        return tf.cast(given, self.wire), given.dtype

    def decompress(self, tensor: Any, ctx: Any) -> tf.Tensor:
        """The tensor in the dtype it had."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """The compressors that come with distrun."""

    none = WireCompressor("")
    fp16 = WireCompressor("float16")
    bf16 = WireCompressor("bfloat16")


def wire_type(compression: object) -> str:
    """The type of elements on the wire; empty for their own, as it is with a compressor of the user's.

    Raises:
        UsageError: it is no compressor.
    """
    if isinstance(compression, any_framework.Compressor):
        return compression.wire
    if not all(callable(getattr(compression, method, None)) for method in ("compress", "decompress")):
        raise UsageError(
            f"compression={compression!r} is not Compression.none, Compression.fp16 or Compression.bf16, and has no "
            "methods compress and decompress: give one of the three, or a compressor of your own"
        )
    return ""


def compressed(compression: Any, tensors: Sequence[Any], reduce: Callable[[Sequence[Any]], Sequence[Any]]) -> list[Any]:
    """Reduce tensors in the form that a compressor of the user's gives them; distrun's own are not called.

    None and tf.IndexedSlices among them stay as they are.
    """
    if isinstance(compression, any_framework.Compressor):
        return list(reduce(tensors))
    given, contexts = list(tensors), {}
    for place, tensor in enumerate(tensors):
        if tensor is not None and not isinstance(tensor, tf.IndexedSlices):
            given[place], contexts[place] = compression.compress(tf.convert_to_tensor(tensor))
    results = list(reduce(given))
    for place, context in contexts.items():
        results[place] = compression.decompress(results[place], context)
    return results
