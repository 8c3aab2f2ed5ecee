"""Collectives through NCCL against numpy, and against the arithmetic of the host, for ranks that are threads."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from distrun.runtime.gpu import nccl_backend
from distrun.runtime.gpu.buffers import RepeatedBuffers
from distrun.runtime.gpu.fusion_memory import FusionMemory
from distrun.runtime.gpu.nccl.library import NcclError, SingleRankCommunicator
from distrun.runtime.gpu.nccl.reduction import is_supported
from distrun.runtime.gpu.nccl_backend import NcclBackend
from distrun.runtime.operations.dtypes import ELEMENT_TYPES
from distrun.runtime.operations.reduction import Adasum, Average, Max, Min, Product, ReduceOp, Reduction, Sum, check_op
from distrun.runtime.operations.request import Request, rows_of
from distrun.tensor_fusion.device_packing import Piece

STREAM = 7
TYPES = {name: np.dtype(name) for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16")}
TYPES |= {name: np.dtype(name) for name in ("float32", "float64")} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
TYPES |= {"complex64": np.dtype("complex64"), "complex128": np.dtype("complex128")}


class Packer:
    """A packer that does at once, with numpy, what the kernel does."""

    def __init__(self, view: Callable) -> None:
        self._view = view
        self.pieces: list[list[Piece]] = []

    def plan(self, pieces: Sequence[Piece], source: str, target: str, factor: float) -> tuple | None:
        if source == target and factor == 1:
            pieces = [piece for piece in pieces if piece.source != piece.target]
        return (pieces, source, target, factor) if pieces else None

    def queue(self, copies: tuple, stream: int) -> None:
        self.copy(*copies, stream)

    def copy(self, pieces: Sequence[Piece], source: str, target: str, factor: float, stream: int) -> None:
        assert pieces
        assert stream == STREAM
        self.pieces.append(list(pieces))
        before = [self._view(address, count, TYPES[source]).copy() for address, _, count in pieces]
        for (_, address, count), values in zip(pieces, before, strict=True):
            if factor != 1:
                values = (values.astype(np.float64) * factor).astype(TYPES[source])
            self._view(address, count, TYPES[target])[:] = values.astype(TYPES[target])


class Group:
    """A communicator whose calls are executed when all ranks have made theirs; they must agree as in NCCL."""

    def __init__(self, hosts: Any, rank: int, view: Callable) -> None:
        self._hosts, self.rank, self.size, self._view = hosts, rank, hosts.size, view
        self._calls: list[tuple] | None = None
        self.made: list[tuple] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        parameters = {
            "all_reduce": ("source", "target", "count", "dtype", "op", "stream"),
            "reduce_scatter": ("source", "target", "count", "dtype", "op", "stream"),
            "reduce": ("source", "target", "count", "dtype", "op", "root", "stream"),
            "broadcast": ("source", "target", "count", "dtype", "root", "stream"),
            "all_gather": ("source", "target", "count", "dtype", "stream"),
            "send": ("source", "count", "dtype", "peer", "stream"),
            "recv": ("target", "count", "dtype", "peer", "stream"),
        }[name]

        def call(*args: Any) -> None:
            given = SimpleNamespace(kind=name, **dict(zip(parameters, args, strict=True)))
            assert given.stream == STREAM
            assert given.count > 0
            self.made.append((name, *args))
            if self._calls is None:
                assert name not in ("send", "recv"), "outside of a group"
                self._execute([given])
            else:
                self._calls.append(given)

        return call

    @contextmanager
    def group(self) -> Iterator[None]:
        self._calls = []
        yield
        calls, self._calls = self._calls, None
        self._execute(calls)

    def _execute(self, calls: list) -> None:
        everybody = self._hosts.exchange(self.rank, calls)
        if self.rank == 0:
            collectives = [[call for call in calls if call.kind not in ("send", "recv")] for calls in everybody]
            for those in zip(*collectives, strict=True):
                for field in ("kind", "count", "dtype", "op", "root"):
                    assert len({getattr(call, field, None) for call in those}) == 1, those
                self._collective(those)
            mail: dict = defaultdict(list)
            for rank, calls in enumerate(everybody):
                for call in calls:
                    if call.kind == "send":
                        mail[rank, call.peer].append(self._bytes(call.source, call))
            for rank, calls in enumerate(everybody):
                for call in calls:
                    if call.kind == "recv":
                        self._view(call.target, call.count, TYPES[call.dtype])[:] = mail[call.peer, rank].pop(0)
            assert not any(mail.values())
        self._hosts.exchange(self.rank, None)

    def _bytes(self, pointer: int, call: Any, count: int = 0) -> np.ndarray:
        return self._view(pointer, count or call.count, TYPES[call.dtype]).copy()

    def _collective(self, those: Sequence[Any]) -> None:
        first, size = those[0], len(those)

        def write(call: Any, values: np.ndarray) -> None:
            self._view(call.target, values.size, values.dtype)[:] = values

        if first.kind == "broadcast":
            values = self._bytes(those[first.root].source, first)
            for call in those:
                write(call, values)
            return
        if first.kind == "all_gather":
            values = np.concatenate([self._bytes(call.source, call) for call in those])
            for call in those:
                write(call, values)
            return
        count = first.count * (size if first.kind == "reduce_scatter" else 1)
        arrays = [self._bytes(call.source, call, count) for call in those]
        ufunc = {"sum": np.add, "avg": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}[first.op]
        wide = np.float64 if arrays[0].dtype.kind not in "iu" else arrays[0].dtype
        total = arrays[0].astype(wide)
        for array in arrays[1:]:
            total = ufunc(total, array.astype(wide))
        if first.op == "avg":
            assert arrays[0].dtype.kind not in "iu"
            total = total / size
        result = total.astype(arrays[0].dtype)
        for rank, call in enumerate(those):
            if first.kind == "reduce_scatter":
                write(call, result[rank * first.count : (rank + 1) * first.count])
            elif first.kind == "all_reduce" or rank == first.root:
                write(call, result)


class Job:
    """Ranks with a backend each."""

    def __init__(self, stand_ins: SimpleNamespace, size: int, wire: str = "") -> None:
        self._tools = stand_ins
        self.size = size
        self.drivers = [stand_ins.Driver() for _ in range(size)]
        threads = stand_ins.ThreadRanks(size)
        self.groups = [Group(threads, rank, stand_ins.view) for rank in range(size)]
        self.packers = [Packer(stand_ins.view) for _ in range(size)]
        self.fusion = [FusionMemory(driver) for driver in self.drivers]
        self.backends = [
            NcclBackend(
                *(self.fusion[rank], self.groups[rank], self.packers[rank], STREAM),
                *(stand_ins.HostBackend(threads, rank, wire), range(size)),
            )
            for rank in range(size)
        ]
        self._threads = threads

    def execute(self, handles: Sequence[Sequence[Any]]) -> None:
        """Execute one operation, given by its handles on each rank."""
        self._threads.run(lambda rank: self.backends[rank].execute(handles[rank], self._tools.allocate))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit, so that arrays of some hundred elements are large."""
    monkeypatch.setattr(nccl_backend, "PACKED_BELOW", 512)


def elements(generator: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """Return numbers whose sums, and averages over up to 4 ranks, are exact in every type: few, and multiples of 12."""
    values = generator.integers(0, 2, count) * 12
    storage = ELEMENT_TYPES[dtype].storage
    if dtype == "bool":
        return values.astype(bool)
    if dtype.startswith("complex"):
        values = values + 1j * generator.integers(-2, 3, count) * 12
    return values.astype(TYPES[dtype]).view(storage)


def cut(array: np.ndarray, generator: np.random.Generator, pieces: int) -> list[np.ndarray]:
    """Return copies of the parts of an array, cut at random."""
    places = np.sort(generator.integers(0, array.size + 1, pieces - 1))
    return [part.copy() for part in np.split(array, places)]


def expected(arrays: Sequence[np.ndarray], request: Request) -> np.ndarray:
    element = ELEMENT_TYPES[request.dtype]
    result = np.empty_like(arrays[0])
    Reduction(element, request.op, len(arrays), request.prescale, request.postscale).combine(arrays, [result])
    return result


REDUCED = [
    (name, op)
    for name, op in itertools.product([*TYPES, "bool"], ReduceOp)
    if is_supported(Request("allreduce", "x", name, ((1,),), op))
]


@given(
    size=st.integers(1, 4),
    kind=st.sampled_from(REDUCED),
    shapes=st.lists(
        st.lists(st.sampled_from([(), (0,), (1,), (3,), (7, 2), (100,), (333,)]), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    ),
    factors=st.sampled_from([(1.0, 1.0), (0.5, 1.0), (1.0, 2.0), (2.0, 0.25)]),
    wire=st.sampled_from(["", "float16", "bfloat16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_allreduce(stand_ins, size, kind, shapes, factors, wire, seed):
    """Whatever the shapes, and however each rank's inputs and outputs are cut and lie, all get the host's result."""
    dtype, op = kind
    if dtype not in ("bool", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        factors = (1.0, 1.0)
    if op is Product:
        wire = ""  # where products of whole numbers may be infinite
    generator = np.random.default_rng(seed)
    job = Job(stand_ins, size, wire=wire)
    sizes = [[int(np.prod(shape)) for shape in group] for group in shapes]
    given_to = [[elements(generator, dtype, sum(group)) for group in sizes] for _ in range(size)]
    requests = [
        Request("allreduce", str(place), dtype, tuple(group), op, -1, *factors) for place, group in enumerate(shapes)
    ]
    handles, inputs, outputs = [], [], []
    for rank in range(size):
        mine = [cut(array, generator, int(generator.integers(1, 4))) for array in given_to[rank]]
        in_place = bool(generator.integers(0, 2))
        theirs = mine
        if not in_place:
            theirs = [cut(np.empty_like(array), generator, int(generator.integers(1, 4))) for array in given_to[rank]]
        inputs.append([] if in_place else [[part.copy() for part in parts] for parts in mine])
        outputs.append(theirs)
        handles.append([stand_ins.handle_of(*whole) for whole in zip(requests, mine, theirs, strict=True)])
    job.execute(handles)
    for place, request in enumerate(requests):
        wanted = expected([given_to[rank][place] for rank in range(size)], request)
        for rank in range(size):
            np.testing.assert_array_equal(np.concatenate(outputs[rank][place]), wanted)
    for rank in range(size):  # inputs are left alone
        for handle, parts in zip(handles[rank], inputs[rank], strict=False):
            for buffer, part in zip(handle.inputs, parts, strict=True):
                np.testing.assert_array_equal(buffer.owner, part)


def test_a_single_tensor_is_reduced_where_it_lies(stand_ins):
    job = Job(stand_ins, 2)
    request = Request("allreduce", "x", "float32", ((5,),), Sum)
    arrays = [np.arange(5, dtype=np.float32) for _ in range(2)]
    apart = np.empty(5, np.float32)
    job.execute(
        [[stand_ins.handle_of(request, [arrays[0]], [arrays[0]])], [stand_ins.handle_of(request, [arrays[1]], [apart])]]
    )
    assert [group.made[0][1:3] for group in job.groups] == [
        (arrays[0].ctypes.data, arrays[0].ctypes.data),
        (arrays[1].ctypes.data, apart.ctypes.data),
    ]
    assert job.packers[0].pieces == job.packers[1].pieces == []
    assert job.fusion[0].nbytes == 0


def test_large_tensors_go_by_themselves_and_small_ones_are_packed_at_multiples_of_16_bytes(stand_ins):
    job = Job(stand_ins, 2)
    arrays = [np.full(count, count, np.float32) for count in (3, 128, 5, 200, 1)]
    request = Request("allreduce", "x", "float32", tuple(array.shape for array in arrays), Sum)
    others = [array.copy() for array in arrays]
    job.execute([[stand_ins.handle_of(request, mine, mine)] for mine in (arrays, others)])
    (packed, first, second) = job.groups[0].made
    base = packed[1]
    assert packed[3] == (16 + 32 + 16) // 4
    assert [call[1:4] for call in (first, second)] == [
        (a.ctypes.data, a.ctypes.data, a.size) for a in (arrays[1], arrays[3])
    ]
    assert job.packers[0].pieces[0] == [
        Piece(arrays[place].ctypes.data, base + offset, arrays[place].size)
        for place, offset in ((0, 0), (2, 16), (4, 48))
    ]
    assert job.fusion[0].nbytes == 2 << 20


@pytest.mark.parametrize(("dtype", "wire"), [("complex64", ""), ("float64", "bfloat16")])
def test_a_scattered_tensor_keeps_its_order(stand_ins, dtype, wire):
    """Where an element has another size in the fusion memory than in its own, or is a pair."""
    job = Job(stand_ins, 1, wire)
    array = np.arange(6).astype(dtype)
    apart = [np.empty(1, dtype), np.empty(5, dtype)]
    request = Request("allreduce", "x", dtype, ((6,),), Sum)
    job.execute([[stand_ins.handle_of(request, [array[:2].copy(), array[2:3].copy(), array[3:].copy()], apart)]])
    assert np.concatenate(apart).tolist() == array.tolist()


def test_on_the_wire_between_hosts_elements_have_the_wire_format(stand_ins):
    request = Request("allreduce", "x", "float32", ((5,),), Average)
    for wire, dtype in (("", "float32"), ("bfloat16", "bfloat16")):
        job = Job(stand_ins, 2, wire)
        arrays = [np.full(5, 24, np.float32) for _ in range(2)]
        job.execute([[stand_ins.handle_of(request, [array], [array])] for array in arrays])
        assert job.groups[0].made[0][4:6] == (dtype, "avg")
        assert arrays[0].tolist() == [24] * 5


@given(
    size=st.integers(1, 4),
    kind=st.sampled_from([(name, op) for name, op in REDUCED if op in (Sum, Average)]),
    shapes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=3),
    factors=st.sampled_from([(1.0, 1.0), (0.5, 4.0)]),
    wire=st.sampled_from(["", "bfloat16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_reducescatter(stand_ins, size, kind, shapes, factors, wire, seed):
    """Shares that come out even and not; rows without elements travel as one element each, as on the host."""
    dtype, op = kind
    if dtype.startswith(("int", "uint")):
        factors = (1.0, 1.0)
    generator = np.random.default_rng(seed)
    job = Job(stand_ins, size, wire=wire)
    request = Request("reducescatter", "x", dtype, tuple(shapes), op, -1, *factors)
    given_to = [[elements(generator, dtype, rows * (row or 1)) for rows, row in shapes] for _ in range(size)]
    before = [[array.copy() for array in arrays] for arrays in given_to]
    handles = [stand_ins.handle_of(request, given_to[rank]) for rank in range(size)]
    job.execute([[handle] for handle in handles])
    for place, shape in enumerate(shapes):
        wanted = expected([before[rank][place] for rank in range(size)], request)
        counts = [rows * (shape[1] or 1) for rows in rows_of(shape, size)]
        for rank, part in enumerate(np.split(wanted, np.cumsum(counts)[:-1])):
            np.testing.assert_array_equal(handles[rank].outputs[place].owner, part)
            np.testing.assert_array_equal(given_to[rank][place], before[rank][place])


MOVED = ("bool", "int16", "bfloat16", "float64", "complex128")


@given(
    counts=st.lists(st.lists(st.sampled_from([0, 1, 5, 5]), min_size=2, max_size=2), min_size=1, max_size=4),
    dtype=st.sampled_from(MOVED),
)
def test_allgather(stand_ins, counts, dtype):
    """Arrays of any sizes, several in one operation."""
    size, storage = len(counts), ELEMENT_TYPES[dtype].storage
    job = Job(stand_ins, size)
    generator = np.random.default_rng(1)
    given_to = [[generator.integers(0, 2, count).astype(storage) for count in mine] for mine in counts]
    request = Request("allgather", "x", dtype, ((-1,), (-1,)))
    handles = [stand_ins.handle_of(request, mine) for mine in given_to]
    job.execute([[handle] for handle in handles])
    for handle in handles:
        assert list(handle.received) == [[mine[place] for mine in counts] for place in range(2)]
        for place in range(2):
            np.testing.assert_array_equal(
                handle.outputs[place].owner, np.concatenate([mine[place] for mine in given_to])
            )


def test_arrays_of_equal_sizes_are_gathered_by_one_call(stand_ins):
    job = Job(stand_ins, 2)
    request = Request("allgather", "x", "float32", ((-1,),))
    job.execute([[stand_ins.handle_of(request, [np.ones(3, np.float32)])] for _ in range(2)])
    assert [(call[0], call[3]) for call in job.groups[0].made] == [("all_gather", 12)]


@given(
    splits=st.integers(1, 4).flatmap(
        lambda size: st.lists(st.lists(st.integers(0, 3), min_size=size, max_size=size), min_size=size, max_size=size)
    ),
    dtype=st.sampled_from(MOVED),
)
def test_alltoall(stand_ins, splits, dtype):
    """Any numbers of elements between any two ranks, none included."""
    size, storage = len(splits), ELEMENT_TYPES[dtype].storage
    job = Job(stand_ins, size)
    generator = np.random.default_rng(1)
    given_to = [generator.integers(0, 2, sum(mine)).astype(storage) for mine in splits]
    request = Request("alltoall", "x", dtype, ((-1,),))
    handles = [stand_ins.handle_of(request, [array], splits=splits[rank]) for rank, array in enumerate(given_to)]
    job.execute([[handle] for handle in handles])
    parts = [np.split(array, np.cumsum(mine)[:-1]) for array, mine in zip(given_to, splits, strict=True)]
    for rank, handle in enumerate(handles):
        assert handle.received == [[splits[peer][rank] for peer in range(size)]]
        np.testing.assert_array_equal(handle.outputs[0].owner, np.concatenate([theirs[rank] for theirs in parts]))


@pytest.mark.parametrize("dtype", MOVED)
def test_broadcast(stand_ins, dtype):
    storage = ELEMENT_TYPES[dtype].storage
    job = Job(stand_ins, 3)
    given_to = [[np.full(count, rank == 1, storage) for count in (4, 0, 2)] for rank in range(3)]
    request = Request("broadcast", "x", dtype, ((4,), (0,), (2,)), root=1)
    job.execute([[stand_ins.handle_of(request, (), mine)] for mine in given_to])
    assert all(array.all() for mine in given_to for array in mine)


def test_repeated_operations_that_are_fused_with_others_are_all_executed(stand_ins):
    job = Job(stand_ins, 2)
    request = Request("broadcast", "x", "float32", ((3,),), root=1)
    arrays = [[np.zeros(3, np.float32) for _ in range(3)] for _ in range(2)]
    kept = [[RepeatedBuffers(stand_ins.handle_of(request, (), [array]).outputs) for array in mine] for mine in arrays]
    for step, number in enumerate((1, 1, 3), 1):  # alone, by its plan, then with two that have none
        for rank, mine in enumerate(arrays):
            for array in mine:
                array[:] = rank * step
        handles = [[stand_ins.handle_of(request, ()) for _ in range(number)] for _ in range(2)]
        for those, buffers in zip(handles, kept, strict=True):
            for handle, own in zip(those, buffers, strict=False):
                handle.outputs = own
        job.execute(handles)
        assert all((array == step).all() for mine in arrays for array in mine[:number])


def test_a_root_is_a_rank_of_the_job(stand_ins):
    job = Job(stand_ins, 2)
    for backend in job.backends:
        backend._ranks = (3, 7)
    arrays = [np.full(3, rank, np.float32) for rank in range(2)]
    request = Request("broadcast", "x", "float32", ((3,),), root=7)
    job.execute([[stand_ins.handle_of(request, (), [array])] for array in arrays])
    assert all((array == 1).all() for array in arrays)


def test_a_world_of_one_needs_no_nccl(stand_ins):
    """Every kind is a copy; the arithmetic is that of one rank."""
    driver = stand_ins.Driver()
    hosts = stand_ins.ThreadRanks(1)
    backend = NcclBackend(
        *(FusionMemory(driver), SingleRankCommunicator(driver), Packer(stand_ins.view), STREAM),
        *(stand_ins.HostBackend(hosts, 0), [0]),
    )
    array = np.arange(1, 7, dtype=np.float32)

    def outcome(request: Request, **given: Any) -> Any:
        handle = stand_ins.handle_of(request, **given)
        backend.execute([handle], stand_ins.allocate)
        return [buffer.owner.tolist() for buffer in handle.outputs]

    values = array.tolist()
    reduced = np.empty_like(array)
    scaled = Request("allreduce", "x", "float32", ((6,),), Average, -1, 2.0, 3.0)
    assert outcome(scaled, inputs=[array], outputs=[reduced]) == [[6 * value for value in values]]
    assert outcome(Request("broadcast", "x", "float32", ((6,),), root=0), outputs=[array.copy()]) == [values]
    assert outcome(Request("allgather", "x", "float32", ((-1,),)), inputs=[array]) == [values]
    assert outcome(Request("alltoall", "x", "float32", ((-1,),)), inputs=[array], splits=[6]) == [values]
    assert outcome(Request("reducescatter", "x", "float32", ((6,),), Sum), inputs=[array]) == [values]


@pytest.mark.parametrize("dtype", sorted(ELEMENT_TYPES))
def test_nccl_computes_what_means_the_same_there(dtype):
    floating = dtype in ("float16", "bfloat16", "float32", "float64")
    whole = dtype in ("int8", "uint8", "int32", "uint32", "int64", "uint64")
    for op, factors in itertools.product(ReduceOp, [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5)]):
        if dtype in ("complex64", "complex128"):
            wanted = op in (Sum, Average)
        else:
            wanted = floating or dtype == "bool" or (whole and op is not Average and factors == (1.0, 1.0))
        wanted = wanted and op is not Adasum
        for kind in ("allreduce", "reducescatter"):
            assert is_supported(Request(kind, "x", dtype, ((3,),), op, -1, *factors)) is wanted
    for kind in ("broadcast", "allgather", "alltoall"):
        assert is_supported(Request(kind, "x", dtype, ((3,),)))
    assert not is_supported(Request("barrier", None, "uint8", ()))


def test_booleans_stay_booleans(stand_ins):
    wanted = {Sum: [0, 1, 1], Average: [0, 1, 1], Max: [0, 1, 1], Min: [0, 0, 1], Product: [0, 0, 1]}
    for op, values in wanted.items():
        check_op(op, "bool")
        job = Job(stand_ins, 2)
        arrays = [np.array([False, False, True]), np.array([False, True, True])]
        request = Request("allreduce", "x", "bool", ((3,),), op, -1, 3.0, 3.0)
        job.execute([[stand_ins.handle_of(request, [array], [array])] for array in arrays])
        assert arrays[0].view(np.uint8).tolist() == arrays[1].view(np.uint8).tolist() == values


def test_an_error_of_nccl_names_the_operation(stand_ins):
    class Broken(Group):
        def all_reduce(self, *args: Any) -> None:
            raise NcclError("allreduce failed in NCCL on rank 0: the cable is loose")

    driver, hosts = stand_ins.Driver(), stand_ins.ThreadRanks(1)
    broken = Broken(hosts, 0, stand_ins.view)
    broken.size = 2  # one rank alone would call nothing
    backend = NcclBackend(
        *(FusionMemory(driver), broken, Packer(stand_ins.view), STREAM), *(stand_ins.HostBackend(hosts, 0), [0])
    )
    array = np.ones(2, np.float32)
    handle = stand_ins.handle_of(Request("allreduce", "g", "float32", ((2,),), Sum), [array], [array.copy()])
    with pytest.raises(
        NcclError, match="allreduce 'g' and 1 more: allreduce failed in NCCL on rank 0: the cable is loose"
    ):
        backend.execute([handle, handle], stand_ins.allocate)
