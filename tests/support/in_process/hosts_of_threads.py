"""Hosts in one process: threads as ranks, links that are queues in memory; and an allreduce on them against numpy."""

from __future__ import annotations

import importlib.util
import itertools
import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from distrun.contract.settings import AUTO, DIRECT
from distrun.runtime.backends import hierarchical, rail, wire_format
from distrun.runtime.backends.algorithms import base, choice, direct, measuring
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.operations import reduction, stages
from distrun.runtime.operations.dtypes import name_of
from distrun.runtime.operations.reduction import Average, Max, Min, Product, ReduceOp, Sum, check_op
from distrun.runtime.operations.wire import AS_THEY_ARE
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links
from distrun.runtime.transport.shared_memory.segment import Heap, Layout, Segment, new_segment_fd

DEADLINE = 60.0
ROOM = 64 << 20  # bytes of a heap
BUFFER = 150  # bytes that a stream takes at once
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"),
]
SHAPES = [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (1, 1, 1), (1, 2, 3), (2, 2, 2), (1, 1, 1, 1), (2, 1, 1, 2)]
"""Ranks of each host."""


_PROGRAMS = Path(__file__).parents[2] / "parallel" / "programs"
_SPEC = importlib.util.spec_from_file_location("reference_of_rails", _PROGRAMS / "reference.py")
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)


# Hosts in one process -------------------------------------------------------------------------------------------------


@dataclass
class Ticket:
    array: Any
    left: int
    is_stream: bool = False

    def next(self, count: int) -> Any:
        """The next bytes to be sent or received."""
        flat = self.array.view(np.uint8)
        return flat[flat.size - self.left :][:count]


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
                leaving, ticket = sent[0], awaited[0]
                if not leaving.is_stream:
                    assert leaving.array.dtype == ticket.array.dtype
                    assert leaving.left == ticket.left, "the two ends do not mean the same array"
                count = min(leaving.left, ticket.left)
                ticket.next(count)[:] = leaving.next(count)
                for end, queue in ((leaving, sent), (ticket, awaited)):
                    end.left -= count
                    if not end.left:
                        queue.popleft()
        self.changed.notify_all()


class MemoryLinks(Links):
    """Links within the process. Arrays are read late, as by an MPI that waits for the receiver, or some of their bytes
    at once, as by TCP."""

    def __init__(self, post: Post, hosts: HostLayout, is_late: bool) -> None:
        self._post, self._hosts, self.are_streams = post, hosts, not is_late

    def send(self, host, array):
        assert array.flags.c_contiguous
        at_once = array.view(np.uint8)[: BUFFER if self.are_streams else 0].copy()
        ticket = Ticket(array, array.nbytes - at_once.size, self.are_streams)
        with self._post.changed:
            queue = self._post.sent.setdefault((self._hosts.rank, self._hosts.peer(host)), deque())
            queue += [part for part in (Ticket(at_once, at_once.size, True), ticket) if part.left]
        return ticket

    def receive(self, host, into):
        assert into.flags.c_contiguous
        ticket = Ticket(into, into.nbytes)
        if ticket.left:
            with self._post.changed:
                way = (self._hosts.peer(host), self._hosts.rank)
                self._post.awaited.setdefault(way, deque()).append(ticket)
        return ticket

    def wait(self, tickets, what, left=0):
        self._until(lambda: not any(ticket.left > left for ticket in tickets))

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


def _names(counts: tuple[int, ...]) -> list[str]:
    """The host of each rank."""
    names = [str(name) for name, count in enumerate(counts) for _ in range(count)]
    if len(counts) > 2 and sum(counts) > 4:  # the ranks of the last host lie between those of the others
        names = [names[-1], *names[:-1]]
    return names


def groups_of(counts: tuple[int, ...]) -> list[list[int]]:
    """The ranks of each host."""
    return [list(ranks) for ranks in HostLayout.of(_names(counts), 0).ranks]


class Job:
    """All ranks of some hosts."""

    def __init__(self, counts: tuple[int, ...], is_late: bool, algorithm: str = AUTO) -> None:
        self._algorithm = algorithm
        self._names = _names(counts)
        self.groups = groups_of(counts)
        self.size = len(self._names)
        self._post = Post()
        self._is_late = is_late
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
        links = MemoryLinks(self._post, hosts, self._is_late)
        return HierarchicalBackend(self._local_groups[rank], hosts, links, algorithm=self._algorithm)

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


def on_ranks(counts: tuple[int, ...], work, is_late: bool = True, algorithm: str = AUTO) -> list[Any]:
    """Run `work(backend)` on all ranks of a job that is closed then; return the results by rank."""
    job = Job(counts, is_late, algorithm)
    results = job.run(work)
    job.close()
    return results


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes at which the way of doing things changes, a thousandth of the real ones: small arrays go all ways."""
    monkeypatch.setattr(choice, "ONE_STEP_LIMIT", 64)
    monkeypatch.setattr(choice, "ONE_STEP_LIMIT_OF_TWO", 512)
    monkeypatch.setattr(choice, "SHARED_FROM", 128)
    monkeypatch.setattr(base, "CHUNK", 512)
    monkeypatch.setattr(direct, "PIECE", 128)


@pytest.fixture(autouse=True)
def reductions_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduction's scratch memory is shared in a process, for one rank is at work in it; here there are several."""
    original = reduction.reduction.__wrapped__
    monkeypatch.setattr(reduction, "_scratch", reduction._scratch.__wrapped__)
    monkeypatch.setattr(hierarchical, "reduction", original)
    monkeypatch.setattr(rail, "stages", stages.stages.__wrapped__)
    monkeypatch.setattr(measuring, "stages", stages.stages.__wrapped__)
    monkeypatch.setattr(measuring, "reduction", original)
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


def bits(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.itemsize > 8 and array.dtype.kind in "fc":
        array = array.astype(np.complex128)  # the padding of a long double means nothing
    return array.tobytes()


def cut(array: np.ndarray[Any, Any], places: list[float]) -> list[np.ndarray[Any, Any]]:
    bounds = [0, *sorted(int(place * array.size) for place in places), array.size]
    return [array[start:stop] for start, stop in itertools.pairwise(bounds)]


def plain(dtype: str, op: ReduceOp, size: int) -> reduction.Reduction:
    """Return a reduction that scales nothing."""
    return reduction.Reduction(reduction.ELEMENT_TYPES[dtype], op, size, 1.0, 1.0)


def check_broadcast(counts, count, root, is_late, algorithm=AUTO):
    """Check a broadcast on all ranks."""
    size = sum(counts)
    arrays = [values("float32", count, 6, rank, "raw") for rank in range(size)]
    wanted = arrays[root % size].tobytes()
    on_ranks(counts, lambda backend: backend.broadcast(arrays[backend.rank], root % size, "it"), is_late, algorithm)
    assert [array.tobytes() for array in arrays] == [wanted] * size


def check_reducescatter(counts, dtype, op, sizes, is_late, algorithm=AUTO):
    """Check a reducescatter, by which each rank gets as many elements as `sizes` says, against the reference."""
    arrays = [values(dtype, sum(sizes), 8, rank, "small") for rank in range(sum(counts))]

    def work(backend):
        return backend.reducescatter(arrays[backend.rank].copy(), sizes, plain(dtype, op, len(arrays)), "it").copy()

    reference.hosts = lambda: groups_of(counts)
    parts = np.split(reference.reduce(arrays, op), np.cumsum(sizes)[:-1])
    for result, expected in zip(on_ranks(counts, work, is_late, algorithm), parts, strict=True):
        reference.check(result, expected, exact=op == Sum)


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
    algorithm=AUTO,
):
    """One allreduce on all ranks against the reference."""
    size = sum(counts)
    arrays = [values(dtype, count, seed, rank, kind) for rank in range(size)]

    def work(backend):
        how = reduction.Reduction(reduction.ELEMENT_TYPES[name_of(dtype_of(dtype))], op, size, *factors, wire=wire)
        given = arrays[backend.rank].view(np.uint16 if dtype == "bfloat16" else dtype_of(dtype))
        room = backend.empty if "shared" in form else np.empty
        source = room(given.size, given.dtype)
        source[:] = given
        target = source if "in place" in form else room(given.size, given.dtype)
        where = cut(source, places[0])
        backend.allreduce(where, where if target is source else cut(target, places[1]), how, "it")
        if target is not source:
            assert source.tobytes() == given.tobytes(), "the input has changed"
        return target.copy()

    results = on_ranks(counts, work, is_late, algorithm)
    assert len({bits(result) for result in results}) == 1, "the ranks have different bits"
    reference.hosts = lambda: groups_of(counts)
    result = results[0].view(dtype_of(dtype))
    if wire.dtype:
        return arrays, result
    rounds = op == Average or factors != (1.0, 1.0) or (op == Product and result.dtype.kind == "c")
    if rounds and algorithm not in (AUTO, DIRECT) and result.dtype.itemsize == 2 and result.dtype.kind not in "iu":
        rounding = 2.0 ** -(8 if result.dtype.name == "bfloat16" else 11)  # of the sum of each step
        found, exact = result.astype(np.float64), reference.reduce(arrays, op, *factors).astype(np.float64)
        if kind != "raw":
            np.testing.assert_allclose(found, exact, rtol=(len(counts) + 2) * rounding, atol=1e-6)
    elif not (rounds and kind == "raw"):
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
