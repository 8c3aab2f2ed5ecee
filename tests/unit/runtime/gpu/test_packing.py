"""The packer's launches, with a cupy that only notes them."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from distrun.errors import CollectiveError, UsageError
from distrun.runtime.gpu.nccl.reduction import NcclReduction
from distrun.runtime.gpu.packing import Packer, PackingPlan, Span
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


# Plans that are kept --------------------------------------------------------------------------------------------------


def plan_of(reduction, is_alone, tensors, output):
    """Return the plan of an allreduce of `tensors`: lists of spans, and whether each is packed with others.

    The results lie one after the other from `output` on.
    """
    plan = PackingPlan(reduction, is_alone, output)
    target = output
    for sources, is_fused in tensors:
        size = sum(span.size for span in sources)
        targets = [Span(target, size)]
        if is_fused:
            plan.add_fused(sources, targets, size)
        elif is_alone and len(sources) == 1 and reduction.is_plain:
            plan.add_copied(sources, targets, size)
        else:
            plan.add_alone(sources, targets, size)
        target += 4 * size
    if any(is_fused for _, is_fused in tensors):
        plan.add_fused_call()
    return plan


def steps_of(plan):
    """Return what a plan is bound to: its calls, and the pieces of its copies."""
    pieces = []
    for copies in (plan.packs, plan.unpacks):
        pieces.append([])
        for table, blocks in copies.launches if copies else []:
            used = table["count"][0] > 0
            rows = [table[field][0][used].tolist() for field in ("source", "target", "count", "stop")]
            pieces[-1].append((blocks, table["factor"].tolist(), rows))
    return plan.calls, pieces


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.5, 1.0), (1.0, 3.0)], ids=str)
@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_a_plan_whose_results_have_moved_is_as_a_new_one(packer, is_alone, scales, wire):
    chance = random.Random(3)
    reduction = NcclReduction("float32", wire, 1, "sum", *scales)
    for _ in range(30):
        sources = (Span(1 << 40 | 64 * chance.randrange(1 << 20), chance.randint(1, 9000)) for _ in iter(int, 1))
        count = chance.choice([1, 3, PIECES + 5])
        tensors = [
            ([next(sources) for _ in range(chance.choice([1, 1, 1, 2]))], not is_alone and chance.random() < 0.7)
            for _ in range(count)
        ]
        outputs = [1 << 41 | chance.choice([1, 128]) * 4 * chance.randrange(1 << 20) for _ in range(5)]
        bases = [chance.choice([0, 1 << 42, 1 << 43])] * 3 + [1 << 44] * 2
        kept = plan_of(reduction, is_alone, tensors, outputs[0])
        for base, output in zip(bases, outputs, strict=True):
            kept.bind(base, output, packer)
            new = plan_of(reduction, is_alone, tensors, output)
            new.bind(base, output, packer)
            assert steps_of(kept) == steps_of(new)
