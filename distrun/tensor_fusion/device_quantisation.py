"""Quantisation in a GPU's memory: the launches of the kernels in quantising.cu, and their compiler options.

Nothing here touches a GPU. One launch gathers gradients from wherever they lie, adds what they have lost before, and
quantises them into the bytes that `runtime.backends.quantisation` describes: bit for bit those of the host, but for the
codes of blocks that are not finite. A second kernel adds up such arrays, and plain ones, in float32.
`runtime/gpu/quantised` launches both, and exchanges the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
"""Values that share a scale."""
PIECES = 128
"""Pieces of one array. A power of two, for the binary search; CUDA passes up to 4096 bytes of parameters."""
SOURCES = 64
"""Arrays that are added up by one launch: the bits of a number say which of them are plain."""
THREADS = 256
"""Threads of a block."""
QUANTISE, ADD_UP = "quantise", "add_up"
"""The names of the kernels."""

QUANTISED = np.dtype(
    [
        ("raw", np.int64),
        ("count", np.int64),
        ("lost", np.int64),
        ("now", np.int64),
        ("factor", np.float64),
        ("source", np.int64, PIECES),
        ("stop", np.int64, PIECES),
    ],
    align=True,
)
"""The parameter of `quantise`: `struct Quantised` in quantising.cu."""
SUM = np.dtype(
    [
        ("out", np.int64),
        ("count", np.int64),
        ("sources", np.int64),
        ("plain", np.uint64),
        ("factor", np.float64),
        ("raw", np.int64, SOURCES),
    ],
    align=True,
)
"""The parameter of `add_up`: `struct Sum` in quantising.cu."""


class Source(NamedTuple):
    """Consecutive float32 numbers at an address, or zeros if that is 0."""

    address: int
    count: int  # type: ignore[assignment]  # hides the method of tuples


class Addend(NamedTuple):
    """An array to add up, by its address: quantised, or plain float32."""

    address: int
    is_plain: bool = False


def nbytes(count: int, bits: int) -> int:
    """Return the bytes of so many quantised values, with codes of 8 or 4 bits: a multiple of 4."""
    return 4 * -(-count // BLOCK) + 4 * -(-count * bits // 32)


def read_code() -> str:
    """Return the source of the kernels."""
    return Path(__file__).with_name("quantising.cu").read_text()


def options(bits: int) -> tuple[str, ...]:
    """Return the options for the compiler, for codes of 8 or 4 bits: the macros that quantising.cu expects."""
    macros = {"BITS": bits, "PIECES": PIECES, "SOURCES": SOURCES, "THREADS": THREADS}
    return ("-std=c++17", *[f"-D{name}={value}" for name, value in macros.items()])


def quantising(
    sources: Sequence[Source], raw: int, factor: float = 1.0, residuals: tuple[int, int] = (0, 0)
) -> tuple[NDArray[Any], int]:
    """Plan the launch that quantises numbers which lie in up to `PIECES` places, as one array.

    Args:
        sources: where they lie, in order.
        raw: the address of the bytes.
        factor: by which they are multiplied.
        losses: the addresses of what they have lost before, and of where to put what they lose now, both float32; zeros
            if nothing is made up for.

    Returns:
        The parameter, an array of one `QUANTISED`, and the number of blocks.
    """
    sources = [source for source in sources if source.count]
    stops = list(accumulate(source.count for source in sources))
    table = np.zeros(1, QUANTISED)
    row = table[0]
    row["raw"], row["count"], row["factor"] = raw, stops[-1], factor
    row["lost"], row["now"] = residuals
    row["source"][: len(sources)] = [source.address for source in sources]
    row["stop"] = stops[-1]
    row["stop"][: len(sources)] = stops
    return table, -(-stops[-1] // (BLOCK * THREADS))


def adding_up(
    addends: Sequence[Addend], count: int, out: int, factor: float = 1.0
) -> Iterator[tuple[NDArray[Any], int]]:
    """Plan the launches that restore arrays of `count` values, and add them up in this order: one for up to `SOURCES`.

    Args:
        addends: the arrays. Those that are plain may lie where the sum is put if they come first.
        count: the values of each.
        out: the address of the sum, in float32.
        factor: by which the sum is multiplied.

    Yields:
        The parameter, an array of one `SUM`, and the number of blocks.
    """
    now, rest = addends[:SOURCES], addends[SOURCES:]
    while now:
        table = np.zeros(1, SUM)
        row = table[0]
        row["out"], row["count"], row["sources"], row["factor"] = out, count, len(now), 1.0 if rest else factor
        row["plain"] = sum(addend.is_plain << place for place, addend in enumerate(now))
        row["raw"][: len(now)] = [addend.address for addend in now]
        yield table, -(-count // THREADS)
        now, rest = [Addend(out, True), *rest[: SOURCES - 1]] if rest else [], rest[SOURCES - 1 :]
