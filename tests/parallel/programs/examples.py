"""Examples that hypothesis makes, the same ones on every rank, and the arrays they stand for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

import distrun
from distrun.runtime.backends.shared_memory import ONE_STEP_LIMIT
from distrun.runtime.collectives.tensors import LARGE
from distrun.runtime.transport.shared_memory.segment import STAGE

Example = TypeVar("Example")

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"),
]
LAYOUTS = ("C", "F", "strided", "reversed", "transposed", "shared", "shared strided", "shared reversed")


def collect(strategy: st.SearchStrategy[Example], count: int) -> list[Example]:
    """Return `count` examples, the same on all ranks: rank 0 draws them, all of them before the first is used."""
    found: list[Example] = []

    @settings(
        derandomize=True,
        max_examples=count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(strategy)
    def keep(example: Example) -> None:
        found.append(example)

    if distrun.rank() == 0:
        keep()
    return distrun.broadcast_object(found)


def process_sets() -> list[distrun.ProcessSet]:
    """Return the world and new process sets, by turns: sets that overlap, and of one rank and of several hosts."""
    world = distrun.global_process_set
    ranks = [(0, 3), (1, 2, 3), (0, 1), (1,), (0, 2), (1, 2), (0, 2, 3)]
    chosen = [those for those in ranks if max(those) < distrun.size() > len(those)]
    made = [distrun.add_process_set(those) for those in chosen]
    return [each for process_set in made for each in (world, process_set)] or [world]


def perform_each(
    strategy: st.SearchStrategy[Any], count: int, perform: Callable[[Any, str | None, distrun.ProcessSet], None]
) -> None:
    """Let `perform` execute examples, with and without a name as they say, on the ranks of one process set each."""
    sets = process_sets()
    for number, case in enumerate(collect(strategy, count)):
        process_set = sets[number % len(sets)]
        if process_set.included():
            try:
                perform(case, f"tensor.{number % 5}" if case.named else None, process_set)
            except AssertionError as error:
                raise AssertionError(f"{case} of {process_set}: {error}") from error
    for process_set in sets[1::2]:
        assert distrun.remove_process_set(process_set)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@st.composite
def shapes(draw: st.DrawFn, dtype: str, min_dims: int = 0) -> tuple[int, ...]:
    """Small shapes of every kind, and large ones around the sizes where the way of doing things changes."""
    if draw(st.integers(0, 3)):
        return tuple(draw(st.lists(st.integers(0, 5), min_size=min_dims, max_size=3)))
    nbytes = draw(st.sampled_from([4096, 32 << 10, ONE_STEP_LIMIT, STAGE, LARGE, 2 * STAGE, 3 << 20]))
    count = max(0, nbytes // dtype_of(dtype).itemsize + draw(st.integers(-1, 1)))
    row = draw(st.sampled_from([1, 1, 2, 7]))
    return (count,) if row == 1 else (count // row, row)


@dataclass(frozen=True)
class Tensor:
    """A tensor that has the same shape and dtype on all ranks, and values and a layout in memory of each rank's own."""

    dtype: str
    shape: tuple[int, ...]
    layouts: tuple[str, ...]
    seed: int
    values: str = "any"  # or small: numbers of which sums and products stay exact, or special: with infinities and NaN

    def on(self, rank: int, rows: int | None = None) -> np.ndarray[Any, Any]:
        """The tensor as `rank` has it, in its layout; with `rows` in dimension 0, if given."""
        values = self.plain(rank, rows)
        return lay_out(values, self.layouts[rank % len(self.layouts)])

    def plain(self, rank: int, rows: int | None = None) -> np.ndarray[Any, Any]:
        """Its values, contiguous."""
        shape = self.shape if rows is None else (rows, *self.shape[1:])
        generator = np.random.default_rng([self.seed, rank])
        return _values(generator, dtype_of(self.dtype), shape, self.values)


def _values(
    generator: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...], kind: str
) -> np.ndarray[Any, Any]:
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        if kind == "small":
            return generator.integers(0 if dtype.kind == "u" else -1, 2, shape).astype(dtype)
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    values = generator.uniform(-2, 2, shape)
    if dtype.kind == "c":
        return (values + 1j * generator.uniform(-2, 2, shape)).astype(dtype)
    if kind == "special":
        odd = generator.choice([np.inf, -np.inf, np.nan, -0.0, 0.0, 6e4, -6e4, 1e-7], shape)
        values = np.where(generator.random(shape) < 0.3, odd, values)
    return np.asarray(values).astype(dtype)


def lay_out(values: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    """Return the values in the given layout in memory."""
    if values.ndim == 0:
        layout = "shared" if layout.startswith("shared") else "C"
    if layout == "F":
        return np.asfortranarray(values)
    if layout == "transposed":
        return np.ascontiguousarray(values.T).T
    shape = values.shape
    if "strided" in layout:
        shape = (2 * shape[0], *shape[1:])
    room = distrun.empty(shape, values.dtype) if "shared" in layout else np.empty(shape, values.dtype)
    if "strided" in layout:
        room = room[::2]
    if "reversed" in layout:
        room = room[::-1]
    room[...] = values
    return room


@st.composite
def tensors(
    draw: st.DrawFn, min_dims: int = 0, values: tuple[str, ...] = ("any",), dtypes: list[str] = DTYPES
) -> Tensor:
    """Any tensor."""
    dtype = draw(st.sampled_from(dtypes))
    return Tensor(
        dtype=dtype,
        shape=draw(shapes(dtype, min_dims)),
        layouts=tuple(draw(st.lists(st.sampled_from(LAYOUTS), min_size=4, max_size=4))),
        seed=draw(st.integers(0, 2**31)),
        values=draw(st.sampled_from(values)),
    )


class SameEverywhere:
    """Gathers results that must have the same bits on all ranks, and compares them once."""

    def __init__(self) -> None:
        self._digests: dict[int, list[str]] = {}

    def add(self, array: np.ndarray[Any, Any], process_set: distrun.ProcessSet = distrun.global_process_set) -> None:
        if array.dtype.itemsize > 8 and array.dtype.kind in "fc":
            array = array.astype(np.complex128)  # the padding of a long double means nothing
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        assert process_set.process_set_id is not None
        self._digests.setdefault(process_set.process_set_id, []).append(digest)

    def check(self) -> None:
        everybodys = distrun.allgather_object(self._digests)
        for number in {number for digests in everybodys for number in digests}:
            mine, *others = [digests[number] for digests in everybodys if number in digests]
            for other in others:
                differing = [place for place, pair in enumerate(zip(mine, other, strict=True)) if len(set(pair)) > 1]
                assert not differing, f"the bits of results {differing} of process set {number} differ between ranks"
