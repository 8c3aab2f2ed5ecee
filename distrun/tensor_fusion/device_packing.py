"""Packing in a GPU's memory: plans the launches of the kernel in packing.cu that copy given pieces, and its options.

Nothing here touches a GPU. A launch takes up to `PIECES` pieces, in a table that is passed by value as the kernel's one
parameter. Invariant: every element of every piece is moved by exactly one block, and blocks begin at whole cache lines
of the target, wherever the piece begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distrun.errors import UsageError

PIECES = 128
"""The most pieces of a launch. A power of two, for the binary search. CUDA passes up to 4096 bytes of parameters, and a
piece takes 28."""

THREADS = 256
"""Threads of a block."""

BLOCK_BYTES = THREADS * 16 * 4
"""Bytes that a block moves, in the wider of the two types: each thread has four loads of 16 bytes in flight at once."""

LINE_BYTES = 128
"""Bytes of a cache line. Blocks begin at multiples of it in the target."""

KERNEL = "pack"
"""The kernel's name in packing.cu."""

TABLE = np.dtype(
    [
        ("factor", np.float64),
        ("source", np.int64, PIECES),
        ("target", np.int64, PIECES),
        ("count", np.int64, PIECES),
        ("stop", np.uint32, PIECES),
    ],
    align=True,
)
"""The kernel's parameter: `struct Table` in packing.cu."""

_NO_BLOCK = np.iinfo(np.uint32).max  # `stop` after the last piece
_BYTE = "byte"
_SIZES = {_BYTE: 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # the element types of packing.cu
_PARTS = {"complex64": "float32", "complex128": "float64"}


class Piece(NamedTuple):
    """Consecutive elements to copy between two addresses, or to set to zero if the source is 0."""

    source: int
    target: int
    count: int  # type: ignore[assignment]  # hides the method of tuples


@dataclass(frozen=True)
class Variant:
    """The kernel for one pair of element types."""

    source: str
    target: str
    units: int
    """The kernel's elements per element of a piece: a copy counts bytes, and a complex number has two parts."""

    @property
    def moves_only(self) -> bool:
        """Whether nothing is converted or scaled."""
        return self.source == _BYTE

    @property
    def chunk(self) -> int:
        """The kernel's elements in a block."""
        return BLOCK_BYTES // max(_SIZES[self.source], _SIZES[self.target])

    @property
    def line(self) -> int:
        """The kernel's elements in a cache line of the target."""
        return LINE_BYTES // _SIZES[self.target]

    def elements_below(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of elements of the target's type below each address."""
        return addresses // _SIZES[self.target]

    @property
    def options(self) -> tuple[str, ...]:
        """The options for the compiler: definitions of the macros that packing.cu expects."""
        macros = {
            **{"SOURCE": self.source, "TARGET": self.target, "CHUNK": self.chunk, "LINE": self.line},
            **{"PIECES": PIECES, "THREADS": THREADS},
        }
        return ("-std=c++17", *[f"-D{name}={value}" for name, value in macros.items()])


def choose_variant(source: str, target: str, factor: float) -> Variant:
    """Return the variant that converts elements of type `source` to type `target`, multiplied by `factor`.

    If the types are the same and the factor is 1, elements of any type are moved as bytes. Conversions and scaling are
    for floating-point types and, if both are the same, complex ones.

    Raises:
        UsageError: the kernel cannot convert or scale these types.
    """
    if source == target and factor == 1:
        return Variant(_BYTE, _BYTE, 2 if source == "bfloat16" else np.dtype(source).itemsize)
    if source == target and source in _PARTS:
        return Variant(_PARTS[source], _PARTS[source], 2)
    for name in (source, target):
        if name not in _SIZES:
            raise UsageError(
                f"{source} elements cannot be made {target} ones on the GPU with factor {factor}: {name} can only be "
                f"copied as it is; types that can be converted and scaled: {', '.join(list(_SIZES)[1:])}"
            )
    return Variant(source, target, 1)


def launches(pieces: Sequence[Piece], variant: Variant, factor: float = 1.0) -> list[tuple[NDArray[Any], int]]:
    """Plan the launches that copy `pieces`.

    Pieces that are empty or already in place are left out. No piece's target may overlap another piece's source or
    target. The grid's limit of 2**31 - 1 blocks, 32 TiB, is more than any GPU's memory.

    Returns:
        For each launch its table, an array of one `TABLE`, and its number of blocks.
    """
    rows = np.fromiter(chain.from_iterable(pieces), np.int64).reshape(-1, 3)  # four times as fast as np.array
    rows = rows[rows[:, 2] > 0]
    if variant.moves_only:
        rows = rows[rows[:, 0] != rows[:, 1]]
    source, target, count = rows.T
    count = count * variant.units
    blocks = -(-(count + variant.elements_below(target) % variant.line) // variant.chunk)
    planned = []
    for start in range(0, len(rows), PIECES):
        here = slice(start, start + PIECES)
        stop = blocks[here].cumsum()
        table = np.zeros(1, TABLE)
        row, used = table[0], len(stop)
        row["factor"] = factor
        row["source"][:used] = source[here]
        row["target"][:used] = target[here]
        row["count"][:used] = count[here]
        row["stop"][:used] = stop
        row["stop"][used:] = _NO_BLOCK
        planned.append((table, int(stop[-1])))
    return planned


def rewrite_sources(planned: Sequence[tuple[NDArray[Any], int]], sources: Sequence[int]) -> None:
    """Replace the sources of the first pieces in planned launches. `launches` must have left out none of them."""
    for start, (table, _) in zip(range(0, len(sources), PIECES), planned, strict=False):
        here = sources[start : start + PIECES]
        table["source"][0, : len(here)] = here


def move_targets(planned: Sequence[tuple[NDArray[Any], int]], by: int) -> None:
    """Add `by` bytes, a multiple of `LINE_BYTES`, to all targets of planned launches."""
    for table, _ in planned:
        table["target"] += by


def read_code() -> str:
    """Return the kernel's source."""
    return Path(__file__).with_name("packing.cu").read_text(encoding="utf-8")
