"""Collectives between hosts equal numpy, with the same bits on all ranks: threads as ranks, links that are queues in
memory."""

from __future__ import annotations

import importlib.util
import itertools
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from distrun.runtime.backends import hierarchical, rail, wire_format
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.operations import reduction
from distrun.runtime.operations.dtypes import name_of
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Average, Max, Min, Product, ReduceOp, Sum, check_op
from distrun.runtime.operations.wire import AS_THEY_ARE, SMALL, Wire, exact_ranges
from distrun.runtime.shared_memory.segment import Heap, Layout, Segment, new_segment_fd
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links

DEADLINE = 60.0
ROOM = 64 << 20  # bytes of a heap
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"),
]
SHAPES = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 1, 1), (1, 2, 3), (2, 2, 2), (1, 1, 1, 1), (2, 1, 1, 2)]
"""Ranks of each host."""


def _load_reference() -> ModuleType:
    file = Path(__file__).parents[3] / "parallel" / "programs" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference_of_rails", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _load_reference()


# Hosts in one process -------------------------------------------------------------------------------------------------


@dataclass
class Ticket:
    into: Any
    left: int


@dataclass
class Post:
    """The arrays that links have been given, by (sender, receiver), in order."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    sent: dict[tuple[int, int], deque[Any]] = field(default_factory=dict)
    awaited: dict[tuple[int, int], deque[Ticket]] = field(default_factory=dict)

    def deliver(self) -> None:
        """Copy what both ends have asked for."""
        for way, sent in self.sent.items():
            awaited = self.awaited.get(way, ())
            while sent and awaited:
                (array, leaving), ticket = sent.popleft(), awaited.popleft()
                assert array.dtype == ticket.into.dtype
                assert array.size == ticket.into.size, "the two ends do not mean the same array"
                ticket.into[:] = array
                ticket.left = 0
                leaving.left = 0
        self.changed.notify_all()


class MemoryLinks(Links):
    """Links within the process. What is sent is read late, as by an MPI that waits for the receiver, or at once, as by
    TCP."""

    def __init__(self, post: Post, hosts: HostLayout, is_late: bool) -> None:
        self._post, self._hosts, self._is_late = post, hosts, is_late

    def send(self, host, array):
        assert array.flags.c_contiguous
        ticket = Ticket(array, array.nbytes)
        if ticket.left:
            with self._post.changed:
                way = (self._hosts.rank, self._hosts.peer(host))
                self._post.sent.setdefault(way, deque()).append((array if self._is_late else array.copy(), ticket))
        if not self._is_late:
            ticket.left = 0
        return ticket

    def receive(self, host, into):
        assert into.flags.c_contiguous
        ticket = Ticket(into, into.nbytes)
        if ticket.left:
            with self._post.changed:
                way = (self._hosts.peer(host), self._hosts.rank)
                self._post.awaited.setdefault(way, deque()).append(ticket)
        return ticket

    def wait(self, tickets, what):
        self._until(lambda: not any(ticket.left for ticket in tickets))

    def flush(self, what):
        ours = [way for way in self._post.sent if way[0] == self._hosts.rank]
        self._until(lambda: not any(self._post.sent[way] for way in ours))

    def _until(self, done):
        with self._post.changed:
            self._post.deliver()
            assert self._post.changed.wait_for(lambda: self._post.deliver() or done(), DEADLINE)


class ThreadGroup:
    """A local group of threads."""

    def __init__(self, own: int, segments: list[Segment], barrier: threading.Barrier, lines: list[Any]) -> None:
        self.size = len(segments)
        self.segments, self.mine, self.heap = segments, segments[own], Heap(segments[own])
        self.parity = 1
        self.stage = self.mine.layout.stage
        self.own, self._barrier, self._lines = own, barrier, lines

    def exchange(self, words, what):
        self._lines[self.parity][self.own] = tuple(words)
        self._barrier.wait(DEADLINE)
        found = list(self._lines[self.parity])
        self.parity ^= 1
        return found


class Job:
    """All ranks of some hosts."""

    def __init__(self, counts: tuple[int, ...], is_late: bool) -> None:
        names = [name for name, count in enumerate(counts) for _ in range(count)]
        if len(counts) > 2 and sum(counts) > 4:  # the ranks of the last host lie between those of the others
            names = [names[-1], *names[:-1]]
        self.groups = [list(ranks) for ranks in HostLayout.of(list(map(str, names)), 0).ranks]
        self.size = len(names)
        self._post = Post()
        self._is_late = is_late
        self._names = list(map(str, names))
        self._fds: list[int] = []
        self._local_groups: dict[int, ThreadGroup] = {}
        for ranks in self.groups:
            segments = [self._segment(len(ranks)) for _ in ranks]
            barrier, lines = threading.Barrier(len(ranks)), [[None] * len(ranks) for _ in range(2)]
            self._local_groups.update(
                {rank: ThreadGroup(own, segments, barrier, lines) for own, rank in enumerate(ranks)}
            )
        self.backends = [self._backend(rank) for rank in range(self.size)]

    def _segment(self, local_size: int) -> Segment:
        size = Layout(local_size).heap + ROOM
        self._fds.append(new_segment_fd(size))
        return Segment(self._fds[-1], size, local_size)

    def _backend(self, rank: int) -> HierarchicalBackend:
        hosts = HostLayout.of(self._names, rank)
        return HierarchicalBackend(self._local_groups[rank], hosts, MemoryLinks(self._post, hosts, self._is_late))

    def run(self, work):
        """`work(backend)` on all ranks at once; the results by rank."""

        def quietly(backend):
            with np.errstate(all="ignore"):
                return work(backend)

        with ThreadPoolExecutor(self.size) as ranks:
            return list(ranks.map(quietly, self.backends))

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        assert not any(self._post.sent.values()), "something was sent that nobody wanted"
        assert not any(self._post.awaited.values()), "something was waited for that nobody sent"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which the way of doing things changes, a thousandth of the real ones: small arrays go all ways."""
    monkeypatch.setattr(hierarchical, "ONE_STEP_LIMIT", 64)
    monkeypatch.setattr(hierarchical, "ONE_STEP_LIMIT_OF_TWO", 512)
    monkeypatch.setattr(rail, "CHUNK", 512)


@pytest.fixture(autouse=True)
def reductions_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduction's scratch memory is shared in a process, for one rank is at work in it; here there are several."""
    original = reduction.reduction.__wrapped__
    monkeypatch.setattr(reduction, "_scratch", reduction._scratch.__wrapped__)
    monkeypatch.setattr(hierarchical, "reduction", original)
    monkeypatch.setattr(hierarchical, "stages", reduction.stages.__wrapped__)
    monkeypatch.setattr(wire_format, "_quantiser", wire_format._quantiser.__wrapped__)


# Values ---------------------------------------------------------------------------------------------------------------


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(dtype: str, count: int, seed: int, rank: int, kind: str) -> np.ndarray[Any, Any]:
    """One rank's array. `raw`: any bits at all, among them NaN of all kinds and denormal numbers; `small`: small
    numbers."""
    generator = np.random.default_rng([seed, rank])
    of = dtype_of(dtype)
    if of == np.bool_:
        return generator.integers(0, 2, count).astype(np.bool_)
    if kind == "small" or "long" in dtype:
        return generator.integers(0, 3, count).astype(of)
    return np.frombuffer(generator.bytes(count * of.itemsize), of).copy()


def stored(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def bits(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.itemsize > 8 and array.dtype.kind in "fc":
        array = array.astype(np.complex128)  # the padding of a long double means nothing
    return array.tobytes()


def cut(array: np.ndarray[Any, Any], places: list[float]) -> list[np.ndarray[Any, Any]]:
    bounds = [0, *sorted(int(place * array.size) for place in places), array.size]
    return [array[start:stop] for start, stop in itertools.pairwise(bounds)]


def check_allreduce(
    counts,
    dtype,
    op,
    count,
    seed,
    kind,
    factors=(1.0, 1.0),
    form="new",
    is_late=True,
    places=((), ()),
    wire=AS_THEY_ARE,
):
    """One allreduce on all ranks against the reference."""
    job = Job(counts, is_late)
    arrays = [values(dtype, count, seed, rank, kind) for rank in range(job.size)]

    def work(backend):
        how = reduction.Reduction(
            reduction.ELEMENT_TYPES[name_of(dtype_of(dtype))],
            op,
            job.size,
            *factors,
            wire=wire,
        )
        given = stored(arrays[backend.rank])
        room = backend.empty if "shared" in form else np.empty
        source = room(given.size, given.dtype)
        source[:] = given
        target = source if "in place" in form else room(given.size, given.dtype)
        where = cut(source, places[0])
        backend.allreduce(where, where if target is source else cut(target, places[1]), how, "it")
        if target is not source:
            assert source.tobytes() == given.tobytes(), "the input has changed"
        return target.copy()

    results = job.run(work)
    job.close()
    assert len({bits(result) for result in results}) == 1, "the ranks have different bits"
    reference.hosts = lambda: job.groups
    result = results[0].view(dtype_of(dtype))
    if wire.dtype:
        return arrays, result
    rounds = op == Average or factors != (1.0, 1.0) or (op == Product and result.dtype.kind == "c")
    if not (rounds and kind == "raw"):
        reference.check(result, reference.reduce(arrays, op, *factors), exact=not rounds)
    return arrays, result


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from(DTYPES))
    op = draw(st.sampled_from([Average, Sum, Min, Max, Product]))
    if "complex" in dtype or dtype == "clongdouble":
        op = {Min: Sum, Max: Product}.get(op, op)
    check_op(op, name_of(dtype_of(dtype)))
    edge = draw(st.sampled_from([0, 64, 512, 1024, 1536, 3 * 1536]))
    kind = draw(st.sampled_from(["raw", "small"]))
    factors = draw(st.sampled_from([(1.0, 1.0), (0.5, 2.0), (2.0, 1.0)] if kind == "small" else [(1.0, 1.0)]))
    pieces = st.lists(st.floats(0, 1), max_size=3).map(tuple)
    return {
        "counts": draw(st.sampled_from(SHAPES)),
        "dtype": dtype,
        "op": op,
        "count": max(1, edge // dtype_of(dtype).itemsize + draw(st.integers(-2, 40))),
        "seed": draw(st.integers(0, 1 << 30)),
        "kind": kind,
        "factors": factors,
        "form": draw(st.sampled_from(["new", "in place", "shared", "shared in place"])),
        "is_late": draw(st.booleans()),
        "places": (draw(pieces), draw(pieces)),
    }


QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


# Tests ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None, suppress_health_check=QUIET)
@given(cases())
def test_any_allreduce_is_right_and_has_the_same_bits_everywhere(small_pieces, case):
    check_allreduce(**case)


REAL = [
    *(
        hierarchical.ONE_STEP_LIMIT,
        hierarchical.ONE_STEP_LIMIT // 2,
        hierarchical.ONE_STEP_LIMIT_OF_TWO,
        rail.CHUNK,
        2 * rail.CHUNK,
    ),
    *(3 * rail.CHUNK, 5 * rail.CHUNK),
]


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (1, 2), (1, 1, 1), (1, 2, 1, 1)], ids=str)
@pytest.mark.parametrize("nbytes", REAL)
def test_the_sizes_at_which_the_way_changes(counts, nbytes):
    for more in (-1, 0, 1):
        check_allreduce(counts, "float32", Sum, nbytes // 4 + more, 1, "raw")
    check_allreduce(counts, "float16", Average, nbytes // 2 + 1, 2, "small", form="shared in place")


@pytest.mark.parametrize("counts", SHAPES, ids=str)
@pytest.mark.parametrize("count", [7, 5000])
def test_averages_of_large_numbers_in_half_precision_do_not_overflow(small_pieces, counts, count):
    job = Job(counts, True)

    def work(backend):
        how = reduction.Reduction(reduction.ELEMENT_TYPES["float16"], Average, job.size, 1.0, 1.0)
        array = np.full(count, 65504, np.float16)
        backend.allreduce([array], [array], how, "it")
        return array

    for result in job.run(work):
        np.testing.assert_allclose(result.astype(np.float64), 65504, rtol=0.002)
    job.close()


@pytest.mark.parametrize("counts", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64"])
def test_averages_of_integers_are_exact(small_pieces, counts, dtype):
    limits = np.iinfo(dtype)
    for count in (3, 4000):
        job = Job(counts, False)
        extreme = limits.max // (job.size if dtype == "int64" else 1)

        def work(backend, count=count, extreme=extreme, size=job.size):
            how = reduction.Reduction(reduction.ELEMENT_TYPES[dtype], Average, size, 1.0, 1.0)
            array = np.full(count, extreme - backend.rank, dtype)
            backend.allreduce([array], [array], how, "it")
            return array

        exact = (sum(int(extreme) - rank for rank in range(job.size))) // job.size
        for result in job.run(work):
            assert (result == exact).all()
        job.close()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
@settings(max_examples=40, deadline=None, suppress_health_check=QUIET)
@given(
    counts=st.sampled_from(SHAPES),
    count=st.integers(1, 3000),
    seed=st.integers(0, 99),
    op=st.sampled_from([Sum, Average]),
    form=st.sampled_from(["new", "in place", "shared in place"]),
)
def test_half_precision_on_the_wire_has_the_same_bits_everywhere(
    small_pieces, dtype, wire, counts, count, seed, op, form
):
    arrays, result = check_allreduce(counts, dtype, op, count, seed, "small", form=form, wire=Wire(wire))
    exact = sum(arrays) / (len(arrays) if op == Average else 1)
    np.testing.assert_allclose(result, exact, rtol=2.0**-6 if wire == "bfloat16" else 2.0**-9)


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
@pytest.mark.parametrize(("wire", "most"), [("int8", 127), ("int4", 7)])
@settings(max_examples=40, deadline=None, suppress_health_check=QUIET)
@given(
    counts=st.sampled_from(SHAPES),
    shapes=st.lists(st.integers(1, 700), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    op=st.sampled_from([Sum, Average]),
    form=st.sampled_from(["new", "in place", "shared in place"]),
    is_late=st.booleans(),
)
def test_what_is_quantised_on_the_wire_is_within_its_bounds_and_the_rest_exact(
    small_pieces, dtype, wire, most, counts, shapes, seed, op, form, is_late
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{Wire.__module__}.SMALL", 300)
        patch.setitem(globals(), "values", normal)
        ranges = exact_ranges([(extent,) for extent in shapes])
        arrays, result = check_allreduce(
            counts, dtype, op, sum(shapes), seed, "", form=form, is_late=is_late, wire=Wire(wire, ranges)
        )
    groups = Job(counts, is_late).groups
    divisor = len(arrays) if op == Average else 1
    shares = [np.sum([arrays[rank].astype(np.float64) for rank in ranks], 0) / divisor for ranks in groups]
    exact = np.sum(shares, 0)
    sent = sum(largest_of_blocks(share, 255) for share in shares) / (2 * most)
    bound = sent + (largest_of_blocks(exact, 255) + largest_of_blocks(sent, 255)) / (2 * most)
    precision = 1e-5 if dtype == "float32" else 1e-13
    error, rounding = np.abs(result - exact), precision * np.sum(np.abs(shares), 0) + 1e-20
    assert (error <= bound * 1.001 + 1e-5 * np.sum(np.abs(shares), 0) + 1e-9).all()
    untouched = np.concatenate([np.arange(*places) for places in ranges]) if ranges else []
    assert (error[untouched] <= rounding[untouched]).all()


@settings(max_examples=30, deadline=None, suppress_health_check=QUIET)
@given(
    counts=st.sampled_from(SHAPES),
    count=st.integers(1, 2000),
    seed=st.integers(0, 99),
    used=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_what_was_lost_is_made_up_for_the_next_time_unless_it_was_of_no_use(small_pieces, counts, count, seed, used):
    """The sum of all results that are used is the exact sum of theirs, apart from what the last one has lost."""
    job = Job(counts, True)
    arrays = [[normal("float32", count, seed + 100 * turn, rank, "") for rank in range(job.size)] for turn in range(12)]
    feedbacks = [Feedback() for _ in range(job.size)]

    def work(backend):
        how = reduction.Reduction(reduction.ELEMENT_TYPES["float32"], Sum, job.size, 1.0, 1.0, wire=Wire("int4"))
        results = []
        for turn, is_used in enumerate(used):
            target = arrays[turn][backend.rank].copy()
            backend.allreduce([target], [target], how, "it", feedbacks[backend.rank])
            if is_used:
                feedbacks[backend.rank].keep()
                results.append(target)
        return np.array(results, np.float64).sum(0) if results else np.zeros(count)

    for result in job.run(work):
        turns = [np.array(arrays[turn], np.float64) for turn, is_used in enumerate(used) if is_used]
        exact = np.sum([turn.sum(0) for turn in turns], 0) if turns else np.zeros(count)
        largest = np.max([np.abs(turn).sum(0) for turn in turns], 0) if turns else np.zeros(count)
        # Once a host's share has lost at most 1/14 of its block's largest element, so has the sum of it, and so on.
        bound = largest_of_blocks(largest, 255) * (2 / 14 + 3 / 14**2) + 1e-5 * np.sum(
            [np.abs(turn).sum(0) for turn in turns], 0
        )
        assert (np.abs(result - exact) <= bound + 1e-9).all()
    job.close()


@pytest.mark.parametrize("wire", ["int8", "int4"])
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_still_seen_after_quantisation(small_pieces, wire, odd):
    def one_odd(dtype, count, seed, rank, kind):
        array = normal(dtype, count, seed, rank, kind)
        if rank == 1:
            array[1000] = odd
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "values", one_odd)
        _, result = check_allreduce((1, 2), "float32", Average, 2 * SMALL, 0, "", wire=Wire(wire))
    assert not np.isfinite(result[1000])
    assert np.isfinite(result).sum() >= 2 * SMALL - 3 * 256


# The other collectives ------------------------------------------------------------------------------------------------

sizes = st.lists(st.sampled_from([0, 1, 2, 7, 100, 1500]), min_size=6, max_size=6)
common = settings(max_examples=120, deadline=None, suppress_health_check=QUIET)


@common
@given(st.sampled_from(SHAPES), sizes, st.booleans(), st.sampled_from(["uint8", "float32", "complex128"]))
def test_allgather(small_pieces, counts, sizes, is_late, dtype):
    job = Job(counts, is_late)
    arrays = [values(dtype, sizes[rank], 5, rank, "raw") for rank in range(job.size)]
    whole = np.concatenate(arrays).tobytes()
    for result, found in job.run(lambda backend: backend.allgather(arrays[backend.rank], "it")):
        assert found == sizes[: job.size]
        assert result.tobytes() == whole
    job.close()


@common
@given(st.sampled_from(SHAPES), st.integers(0, 4000), st.integers(0, 5), st.booleans())
def test_broadcast(small_pieces, counts, count, root, is_late):
    job = Job(counts, is_late)
    root %= job.size
    arrays = [values("float32", count, 6, rank, "raw") for rank in range(job.size)]
    wanted = arrays[root].tobytes()
    job.run(lambda backend: backend.broadcast(arrays[backend.rank], root, "it"))
    assert [array.tobytes() for array in arrays] == [wanted] * job.size
    job.close()


@common
@given(st.sampled_from(SHAPES), st.integers(0, 1 << 20), st.booleans())
@example((1, 1, 1), 1, True)
def test_alltoall(small_pieces, counts, seed, is_late):
    job = Job(counts, is_late)
    generator = np.random.default_rng(seed)
    table = generator.integers(0, 400, (job.size, job.size)) * (generator.random((job.size, job.size)) < 0.7)
    arrays = [values("int32", int(table[rank].sum()), 7, rank, "raw") for rank in range(job.size)]
    parts = [np.split(array, np.cumsum(table[rank])[:-1]) for rank, array in enumerate(arrays)]
    results = job.run(lambda backend: backend.alltoall(arrays[backend.rank], table[backend.rank].tolist(), "it"))
    for rank, (result, received) in enumerate(results):
        assert received == table[:, rank].tolist()
        assert result.tobytes() == np.concatenate([sent[rank] for sent in parts]).tobytes()
    job.close()


@common
@given(
    st.sampled_from(SHAPES),
    sizes,
    st.sampled_from(["uint8", "float16", "float32", "int64"]),
    st.sampled_from([Sum, Average]),
    st.booleans(),
)
def test_reducescatter(small_pieces, counts, sizes, dtype, op: ReduceOp, is_late):
    job = Job(counts, is_late)
    sizes = sizes[: job.size]
    arrays = [values(dtype, sum(sizes), 8, rank, "small") for rank in range(job.size)]

    def work(backend):
        how = reduction.Reduction(reduction.ELEMENT_TYPES[dtype], op, job.size, 1.0, 1.0)
        return backend.reducescatter(arrays[backend.rank].copy(), sizes, how, "it").copy()

    reference.hosts = lambda: job.groups
    parts = np.split(reference.reduce(arrays, op), np.cumsum(sizes)[:-1])
    for result, expected in zip(job.run(work), parts, strict=True):
        reference.check(result, expected, exact=op == Sum)
    job.close()


@pytest.mark.parametrize("counts", SHAPES, ids=str)
def test_barrier_lets_nobody_go_before_all_have_come(counts):
    job = Job(counts, True)
    come: list[int] = []

    def work(backend):
        come.append(backend.rank)
        backend.barrier("it")
        return len(come)

    assert job.run(work) == [job.size] * job.size
    job.close()
