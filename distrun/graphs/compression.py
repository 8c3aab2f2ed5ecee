"""Compression of what travels between hosts, for the frameworks that run graphs.

`Compression.fp16` and `Compression.bf16` concern only what leaves a host: there float32 and float64 travel in half
precision; the ranks of a host are added up before that, and the hosts after it, in full.
"""

from __future__ import annotations

from dataclasses import dataclass

from distrun.errors import UsageError


@dataclass(frozen=True)
class Compressor:
    """A type in which elements travel between hosts; empty: their own."""

    wire: str


class Compression:
    """The compressors there are."""

    none = Compressor("")
    fp16 = Compressor("float16")
    bf16 = Compressor("bfloat16")


def wire_type(compression: object) -> str:
    """The type of elements on the wire.

    Raises:
        UsageError: it is not one of `Compression`.
    """
    if not isinstance(compression, Compressor):
        raise UsageError(
            f"compression={compression!r} is not Compression.none, Compression.fp16 or Compression.bf16: choose one of "
            "them"
        )
    return compression.wire
