"""The packer's launches, with a cupy that only notes them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from distrun.errors import CollectiveError, UsageError
from distrun.runtime.gpu.packing import Packer
from distrun.tensor_fusion.device_packing import PIECES, TABLE, THREADS, Piece, choose_variant


class Kernels:
    """A cupy that notes what is compiled, and what is launched."""

    def __init__(self) -> None:
        self.compiled: list[tuple[str, ...]] = []
        self.launched: list[tuple] = []
        self.error: Exception | None = None

    def RawKernel(self, code, name, options):  # noqa: N802
        assert f"{name}(const Table table)" in code
        self.compiled.append(options)

        def launch(grid, block, args, *, stream):
            if self.error:
                raise self.error
            (table,) = args
            assert (table.dtype, table.size) == (TABLE, 1)
            self.launched.append((options, grid, block, stream.ptr))

        return launch


@pytest.fixture
def cupy() -> Kernels:
    return Kernels()


@pytest.fixture
def packer(cupy) -> Packer:
    return Packer(SimpleNamespace(cupy=cupy))


def test_many_arrays_are_one_launch_on_the_given_stream(cupy, packer):
    packer.copy([Piece(1 << 20, i << 30, 100) for i in range(1, PIECES + 1)], "float32", "float32", 1.0, 77)
    assert cupy.launched == [(choose_variant("float32", "float32", 1).options, (PIECES,), (THREADS,), 77)]


def test_more_arrays_than_the_table_holds_are_several(cupy, packer):
    packer.copy([Piece(1 << 20, i << 30, 100) for i in range(1, PIECES + 2)], "float32", "bfloat16", 0.5, 0)
    assert [grid for _, grid, _, _ in cupy.launched] == [(PIECES,), (1,)]


def test_nothing_to_do_is_no_launch(cupy, packer):
    packer.copy([Piece(64, 64, 10), Piece(64, 128, 0)], "float32", "float32", 1.0, 0)
    packer.copy([], "float32", "float16", 1.0, 0)
    assert cupy.launched == cupy.compiled == []


def test_a_variant_is_made_once(cupy, packer):
    for name in ("int8", "float64", "bool"):
        packer.copy([Piece(1 << 20, 1 << 30, 100)], name, name, 1.0, 0)
    packer.copy([Piece(1 << 20, 1 << 30, 100)], "float64", "float64", 0.5, 0)
    assert cupy.compiled == [
        choose_variant("int8", "int8", 1).options,
        choose_variant("float64", "float64", 0.5).options,
    ]


def test_what_cupy_raises_becomes_an_error_of_the_operation(cupy, packer):
    cupy.error = RuntimeError("no NVRTC")
    with pytest.raises(CollectiveError, match="could not copy 1 arrays of int8 as int8: RuntimeError: no NVRTC"):
        packer.copy([Piece(1 << 20, 1 << 30, 100)], "int8", "int8", 1.0, 0)


def test_integers_are_not_scaled(packer):
    with pytest.raises(UsageError, match="int8 can only be copied"):
        packer.copy([Piece(1 << 20, 1 << 30, 100)], "int8", "int8", 0.5, 0)
