"""Collectives between hosts equal numpy, with the same bits on all ranks: threads as ranks, links that are queues in
memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from in_process import hosts_of_threads
from in_process.hosts_of_threads import (
    SHAPES,
    cases,
    check_allreduce,
    check_broadcast,
    check_reducescatter,
    groups_of,
    on_ranks,
    plain,
    values,
)
from session.hypothesis_profiles import examples
from session.tiers import one_in_gate

from distrun.runtime.backends.algorithms import base, choice
from distrun.runtime.operations import reduction
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Average, Sum
from distrun.runtime.operations.wire import SMALL, Wire, exact_ranges


@examples(gate=40, full=300)
@given(cases())
def test_any_allreduce_is_right_and_has_the_same_bits_everywhere(small_pieces, case):
    check_allreduce(**case)


REAL = [
    *(choice.ONE_STEP_LIMIT, choice.ONE_STEP_LIMIT // 2, choice.ONE_STEP_LIMIT_OF_TWO, base.CHUNK, 2 * base.CHUNK),
    *(3 * base.CHUNK, 5 * base.CHUNK),
]


@pytest.mark.parametrize("counts", one_in_gate((1, 1), (2, 2), (1, 2), (1, 1, 1), (1, 2, 1, 1), chosen=2), ids=str)
@pytest.mark.parametrize("nbytes", REAL)
def test_the_sizes_at_which_the_way_changes(counts, nbytes):
    for more in (-1, 0, 1):
        check_allreduce(counts, "float32", Sum, nbytes // 4 + more, 1, "raw")
    check_allreduce(counts, "float16", Average, nbytes // 2 + 1, 2, "small", form="shared in place")


@pytest.mark.parametrize("counts", one_in_gate(*SHAPES, chosen=SHAPES.index((1, 2, 3))), ids=str)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64"])
def test_averages_of_integers_are_exact(small_pieces, counts, dtype):
    size = sum(counts)
    extreme = np.iinfo(dtype).max // (size if dtype == "int64" else 1)

    def work(backend, count):
        array = np.full(count, extreme - backend.rank, dtype)
        backend.allreduce([array], [array], plain(dtype, Average, size), "it")
        return array

    for count in (3, 4000):
        exact = (sum(int(extreme) - rank for rank in range(size))) // size
        assert all((result == exact).all() for result in on_ranks(counts, partial(work, count=count), is_late=False))


def normal(dtype: str, count: int, seed: int, rank: int, kind: str) -> np.ndarray[Any, Any]:
    """One rank's gradients: of very different sizes, some of them zero."""
    generator = np.random.default_rng([seed, rank])
    sizes = 10.0 ** generator.integers(-6, 3, -(-count // 100))
    return (generator.standard_normal(count) * np.repeat(sizes, 100)[:count]).astype(dtype)


def largest_of_blocks(array: np.ndarray[Any, Any], reach: int) -> np.ndarray[Any, Any]:
    """The largest absolute value within `reach` of each element: at least that of its block, wherever blocks begin."""
    padded = np.pad(np.abs(array), reach)
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("wire", "lost"), [("int8", 1 / 254), ("int4", 5 / 18)])
@examples(gate=8, full=100)
@given(
    counts=st.sampled_from(SHAPES),
    shapes=st.lists(st.integers(1, 700), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    op=st.sampled_from([Sum, Average]),
    form=st.sampled_from(["new", "in place", "shared in place"]),
    is_late=st.booleans(),
)
def test_what_is_quantised_on_the_wire_is_within_its_bounds_and_the_rest_exact(
    small_pieces, dtype, wire, lost, counts, shapes, seed, op, form, is_late
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{Wire.__module__}.SMALL", 300)
        patch.setattr(hosts_of_threads, "values", normal)
        ranges = exact_ranges([(extent,) for extent in shapes])
        arrays, result = check_allreduce(
            counts, dtype, op, sum(shapes), seed, "", form=form, is_late=is_late, wire=Wire(wire, ranges)
        )
    groups = groups_of(counts)
    divisor = len(arrays) if op == Average else 1
    shares = [np.sum([arrays[rank].astype(np.float64) for rank in ranks], 0) / divisor for ranks in groups]
    exact = np.sum(shares, 0)
    sent = sum(largest_of_blocks(share, 255) for share in shares) * lost
    bound = sent + (largest_of_blocks(exact, 255) + largest_of_blocks(sent, 255)) * lost
    precision = 1e-5 if dtype == "float32" else 1e-13
    error, rounding = np.abs(result - exact), precision * np.sum(np.abs(shares), 0) + 1e-20
    assert (error <= bound * 1.001 + 1e-5 * np.sum(np.abs(shares), 0) + 1e-9).all()
    untouched = np.concatenate([np.arange(*places) for places in ranges]) if ranges else []
    assert (error[untouched] <= rounding[untouched]).all()


@examples(gate=8, full=100)
@given(
    counts=st.sampled_from(SHAPES),
    count=st.integers(1, 2000),
    seed=st.integers(0, 99),
    used=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_what_was_lost_is_made_up_for_the_next_time_unless_it_was_of_no_use(small_pieces, counts, count, seed, used):
    """The sum of all results that are used, and of what is still owed, is the exact sum of theirs."""
    size = sum(counts)
    arrays = [[normal("float32", count, seed + 100 * turn, rank, "") for rank in range(size)] for turn in range(12)]

    def work(backend):
        how = reduction.Reduction(reduction.ELEMENT_TYPES["float32"], Sum, size, 1.0, 1.0, wire=Wire("int4"))
        feedback, results = Feedback(), np.zeros(count)
        for turn, is_used in enumerate(used):
            target = arrays[turn][backend.rank].copy()
            backend.allreduce([target], [target], how, "it", feedback)
            if is_used:
                feedback.keep()
                results += target
        owed = feedback.owed(count)
        return results, np.zeros(count) if owed is None else owed

    results = on_ranks(counts, work)
    owed = np.sum([each[1] for each in results], 0, np.float64)
    turns = [np.array(arrays[turn], np.float64) for turn, is_used in enumerate(used) if is_used]
    exact = np.sum([turn.sum(0) for turn in turns], 0) if turns else np.zeros(count)
    precision = 1e-5 * largest_of_blocks(np.sum([np.abs(turn).sum(0) for turn in turns], 0) + np.zeros(count), 255)
    for result, _ in results:
        assert (np.abs(result + owed - exact) <= precision + 1e-9).all()


@pytest.mark.parametrize("wire", ["int8", "int4"])
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_still_seen_after_quantisation(small_pieces, wire, odd):
    def one_odd(dtype, count, seed, rank, kind):
        array = normal(dtype, count, seed, rank, kind)
        if rank == 1:
            array[1000] = odd
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hosts_of_threads, "values", one_odd)
        _, result = check_allreduce((1, 2), "float32", Average, 2 * SMALL, 0, "", wire=Wire(wire))
    assert not np.isfinite(result[1000])
    assert np.isfinite(result).sum() >= 2 * SMALL - 3 * 256


sizes = st.lists(st.sampled_from([0, 1, 2, 7, 100, 1500]), min_size=6, max_size=6)


@given(st.sampled_from(SHAPES), sizes, st.booleans(), st.sampled_from(["uint8", "float32", "complex128"]))
def test_allgather(small_pieces, counts, sizes, is_late, dtype):
    sizes = sizes[: sum(counts)]
    arrays = [values(dtype, size, 5, rank, "raw") for rank, size in enumerate(sizes)]
    for result, found in on_ranks(counts, lambda backend: backend.allgather(arrays[backend.rank], "it"), is_late):
        assert found == sizes
        assert result.tobytes() == np.concatenate(arrays).tobytes()


@given(st.sampled_from(SHAPES), st.integers(0, 4000), st.integers(0, 5), st.booleans())
def test_broadcast(small_pieces, counts, count, root, is_late):
    check_broadcast(counts, count, root, is_late)


@given(st.sampled_from(SHAPES), st.integers(0, 1 << 20), st.booleans())
@example((1, 1, 1), 1, True)
def test_alltoall(small_pieces, counts, seed, is_late):
    generator, size = np.random.default_rng(seed), sum(counts)
    table = generator.integers(0, 400, (size, size)) * (generator.random((size, size)) < 0.7)
    arrays = [values("int32", int(table[rank].sum()), 7, rank, "raw") for rank in range(size)]
    parts = [np.split(array, np.cumsum(table[rank])[:-1]) for rank, array in enumerate(arrays)]

    def work(backend):
        return backend.alltoall(arrays[backend.rank], table[backend.rank].tolist(), "it")

    for rank, (result, received) in enumerate(on_ranks(counts, work, is_late)):
        assert received == table[:, rank].tolist()
        assert result.tobytes() == np.concatenate([sent[rank] for sent in parts]).tobytes()


@given(
    st.sampled_from(SHAPES),
    sizes,
    st.sampled_from(["uint8", "float16", "float32", "int64"]),
    st.sampled_from([Sum, Average]),
    st.booleans(),
)
def test_reducescatter(small_pieces, counts, sizes, dtype, op, is_late):
    check_reducescatter(counts, dtype, op, sizes[: sum(counts)], is_late)


@pytest.mark.parametrize("counts", SHAPES, ids=str)
def test_barrier_lets_nobody_go_before_all_have_come(counts):
    come: list[int] = []

    def work(backend):
        come.append(backend.rank)
        backend.barrier("it")
        return len(come)

    assert on_ranks(counts, work) == [sum(counts)] * sum(counts)
