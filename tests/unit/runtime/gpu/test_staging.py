"""Collectives through the host's memory: the results are the host backend's, and no copy is overtaken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distrun.errors import UsageError
from distrun.runtime.backends.groups import Groups
from distrun.runtime.gpu.staging import StagedBackend
from distrun.runtime.operations.reduction import Average, Product, Sum
from distrun.runtime.operations.request import Request

STREAM = 7


class Job:
    def __init__(self, stand_ins: SimpleNamespace, size: int = 2) -> None:
        self._tools, self._threads = stand_ins, stand_ins.ThreadRanks(size)
        self.drivers = [stand_ins.Driver() for _ in range(size)]
        self.backends = [
            StagedBackend(self.drivers[rank], STREAM, Groups(stand_ins.HostBackend(self._threads, rank)))
            for rank in range(size)
        ]

    def execute(self, *handles: Any) -> None:
        """Execute one operation, given by its handles on each rank."""
        self._threads.run(lambda rank: self.backends[rank].execute(handles[rank], self._tools.allocate))


def outputs(handle: Any) -> list[list]:
    return [buffer.owner.tolist() for buffer in handle.outputs]


@pytest.mark.parametrize("in_place", [True, False])
def test_allreduce(stand_ins, in_place):
    """Average integers, which NCCL cannot: several handles, whose inputs and outputs are cut at different places."""
    job = Job(stand_ins)
    requests = [
        Request("allreduce", name, "int16", shapes, Average) for name, shapes in (("a", ((3,), (2,))), ("b", ((1,),)))
    ]
    arrays = [np.arange(5, dtype=np.int16) * (rank + 1) - 7 for rank in range(2)]
    handles = []
    for array in arrays:
        inputs = [array[:3].copy(), array[3:].copy()]
        theirs = inputs if in_place else [np.empty(1, np.int16), np.empty(4, np.int16)]
        single = array[:1].copy()
        handles.append(
            [stand_ins.handle_of(requests[0], inputs, theirs), stand_ins.handle_of(requests[1], [single], [single])]
        )
    job.execute(*handles)
    wanted = np.trunc(sum(array.astype(float) for array in arrays) / 2).astype(int).tolist()
    for several, single in handles:
        assert [value for output in outputs(several) for value in output] == wanted
        assert outputs(single) == [wanted[:1]]


def test_complex_products(stand_ins):
    job = Job(stand_ins)
    arrays = [np.array([1 + 2j, 3], np.complex64), np.array([2j, 5], np.complex64)]
    request = Request("allreduce", "x", "complex64", ((2,),), Product)
    job.execute(*[[stand_ins.handle_of(request, [array], [array])] for array in arrays])
    assert arrays[0].tolist() == arrays[1].tolist() == [-4 + 2j, 15]


def test_broadcast(stand_ins):
    job = Job(stand_ins)
    arrays = [[np.full(3, rank, np.int16), np.full(0, rank, np.int16), np.full(1, rank, np.int16)] for rank in range(2)]
    request = Request("broadcast", "x", "int16", ((3,), (0,), (1,)), root=1)
    job.execute(*[[stand_ins.handle_of(request, (), mine)] for mine in arrays])
    assert [array.tolist() for array in arrays[0]] == [[1, 1, 1], [], [1]]
    assert not [entry for entry in job.drivers[0].log[:1] if entry[0] == "copy"], "only the root's are fetched"


def test_allgather(stand_ins):
    job = Job(stand_ins)
    request = Request("allgather", "x", "int16", ((-1,), (-1,)))
    handles = [
        [stand_ins.handle_of(request, [np.full(count, rank, np.int16) for count in (rank + 1, 2 * rank)])]
        for rank in range(2)
    ]
    job.execute(*handles)
    for (handle,) in handles:
        assert outputs(handle) == [[0, 1, 1], [1, 1]]
        assert list(handle.received) == [[1, 2], [0, 2]]


def test_alltoall(stand_ins):
    job = Job(stand_ins)
    request = Request("alltoall", "x", "int16", ((-1,),))
    handles = [
        [stand_ins.handle_of(request, [np.arange(3, dtype=np.int16) + 10 * rank], splits=splits)]
        for rank, splits in enumerate(((1, 2), (3, 0)))
    ]
    job.execute(*handles)
    assert [outputs(handle) for (handle,) in handles] == [[[0, 10, 11, 12]], [[1, 2]]]
    assert [handle.received for (handle,) in handles] == [[[1, 3]], [[2, 0]]]


def test_reducescatter(stand_ins):
    job = Job(stand_ins)
    request = Request("reducescatter", "x", "uint16", ((3, 2), (1, 0)), Sum)
    handles = [
        [stand_ins.handle_of(request, [np.arange(6, dtype=np.uint16), np.zeros(1, np.uint16)])] for _ in range(2)
    ]
    job.execute(*handles)
    assert [outputs(handle) for (handle,) in handles] == [[[0, 2, 4, 6], [0]], [[8, 10], []]]


def test_the_host_waits_before_it_reads_and_before_it_writes_again(stand_ins):
    job = Job(stand_ins, 1)
    array = np.arange(4, dtype=np.int16)
    request = Request("allreduce", "x", "int16", ((4,),), Average)
    for _ in range(2):
        job.execute([stand_ins.handle_of(request, [array], [array])])
    fetched = [("copy", 8, STREAM), ("record", STREAM), ("synchronize", STREAM)]
    given = [("copy", 8, STREAM), ("record", STREAM)]
    assert job.drivers[0].log == [*fetched, *given, ("synchronize", STREAM), *fetched, *given]
    assert job.backends[0].pinned_bytes == 1 << 20
    job.drivers[0].log.clear()
    job.backends[0].close()
    job.backends[0].close()
    assert job.drivers[0].log == [("synchronize", STREAM)]


def test_the_memory_grows_with_results(stand_ins):
    job = Job(stand_ins)
    request = Request("allgather", "x", "int16", ((-1,),))
    arrays = [np.full(400_000, rank, np.int16) for rank in range(2)]
    handles = [[stand_ins.handle_of(request, [array])] for array in arrays]
    job.execute(*handles)
    np.testing.assert_array_equal(handles[0][0].outputs[0].owner, np.concatenate(arrays))
    assert job.backends[0].pinned_bytes == 2 << 20


def test_a_graph_cannot_contain_it(stand_ins):
    job = Job(stand_ins, 1)
    job.drivers[0].capturing = {STREAM}
    array = np.arange(4, dtype=np.int16)
    handle = stand_ins.handle_of(Request("allreduce", "x", "int16", ((4,),), Average), [array], [array])
    with pytest.raises(UsageError, match="allreduce 'x' of int16 goes through the host's memory"):
        job.execute([handle])
