"""Quantisation in a GPU's memory: plans the launches of the kernels in quantising.cu, and their options.

Nothing here touches a GPU. One launch reads gradients from several places, adds their last residuals, and quantises
them into the bytes that `runtime.backends.quantisation` describes: bit for bit the host's, except for the codes of
blocks that are not finite. A second kernel adds up such arrays, and plain ones, in float32. `runtime/gpu/quantised`
launches both, and exchanges the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
"""The number of values that share a scale."""
PIECES = 128
"""The most pieces of an array. A power of two, for the binary search. CUDA passes up to 4096 bytes of parameters."""
SOURCES = 64
"""The most arrays that one launch adds up: the bits of one number tell which of them are plain."""
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
    """Consecutive float32 numbers at an address, or zeros if the address is 0."""

    address: int
    count: int  # type: ignore[assignment]  # hides the method of tuples


class Addend(NamedTuple):
    """An array to add up, given by its address: quantised, or plain float32."""

    address: int
    is_plain: bool = False


def nbytes(count: int, bits: int) -> int:
    """Return the bytes of `count` quantised values with codes of 8 or 4 bits: a multiple of 4."""
    return 4 * -(-count // BLOCK) + 4 * -(-count * bits // 32)


def read_code() -> str:
    """Return the source of the kernels."""
    return Path(__file__).with_name("quantising.cu").read_text()


def options(bits: int) -> tuple[str, ...]:
    """Return the options for the compiler: definitions of the macros that quantising.cu expects, for 8 or 4 `bits`."""
    macros = {"BITS": bits, "PIECES": PIECES, "SOURCES": SOURCES, "THREADS": THREADS}
    return ("-std=c++17", *[f"-D{name}={value}" for name, value in macros.items()])


def quantising(
    sources: Sequence[Source], raw: int, factor: float = 1.0, residuals: tuple[int, int] = (0, 0)
) -> tuple[NDArray[Any], int]:
    """Plan the launch that quantises the numbers of up to `PIECES` sources, as one array.

    Args:
        sources: where the numbers are, in order.
        raw: the address for the quantised bytes.
        factor: the numbers are multiplied by it.
        residuals: the address of the last residuals, and the address for the new ones, both float32. Zeros if there is
            no error feedback.
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
    """Plan the launches that decode arrays of `count` values and add them up in this order, up to `SOURCES` per launch.

    Args:
        addends: the arrays. Plain ones may be at the address `out` if they come first.
        count: the values of each.
        out: the address for the sum, in float32.
        factor: the sum is multiplied by it.

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
