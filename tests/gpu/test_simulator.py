"""The simulated GPU: it must be late where a GPU is late, and report what would corrupt results on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from session.tiers import one_in_gate

SIMULATOR = Path(__file__).parents[1] / "simulator"
DEADLINE = 60.0  # seconds; far more than anything takes


@pytest.fixture
def cupy(simulated: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("SIMULATED_GPUS", "2")
    import cupy

    return cupy


class Gate:
    """An operation that lasts until it is opened."""

    def __init__(self, stream: Any, **ranges: Any) -> None:
        from simulator import streams

        self._opened = threading.Event()
        operation = streams.Operation("a gate", lambda: self._wait, **ranges)
        streams.stream_of(stream.ptr).queue(operation)

    def _wait(self) -> None:
        self._opened.wait(DEADLINE)

    def open(self) -> None:
        self._opened.set()


def violations_of(simulated: ModuleType) -> str:
    """Return the violations in this test, which expects them, and forget them."""
    return "\n".join(simulated.violations(clear=True))


# Streams and events ---------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_stream_runs_in_order_behind_the_host(cupy):
    stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    gate = Gate(stream)
    with stream:
        array = cupy.asarray(np.arange(5.0))
        copy = cupy.empty(5)
        cupy.cuda.runtime.memcpyAsync(copy.data.ptr, array.data.ptr, 40, cupy.cuda.runtime.memcpyDefault, stream.ptr)
    cupy.cuda.runtime.eventRecord(event.ptr, stream.ptr)
    assert cupy.cuda.runtime.eventQuery(event.ptr) == 600
    assert np.isnan(copy._host()).all()  # new memory is full of NaN, and nothing has run
    gate.open()
    cupy.cuda.runtime.eventSynchronize(event.ptr)
    assert cupy.cuda.runtime.eventQuery(event.ptr) == 0
    assert copy._host().tolist() == [0, 1, 2, 3, 4]


def test_a_stream_waits_for_the_latest_record_at_the_time_of_the_call(cupy):
    first, second, runtime = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True), cupy.cuda.runtime
    event = cupy.cuda.Event()
    assert runtime.eventQuery(event.ptr) == 0  # never recorded
    runtime.streamWaitEvent(second.ptr, event.ptr)
    one = Gate(first)
    runtime.eventRecord(event.ptr, first.ptr)
    runtime.streamWaitEvent(second.ptr, event.ptr)
    two = Gate(first)
    runtime.eventRecord(event.ptr, first.ptr)
    assert runtime.streamQuery(second.ptr) == 600
    one.open()
    second.synchronize()  # not for the second record
    assert runtime.eventQuery(event.ptr) == 600
    two.open()
    first.synchronize()
    assert runtime.eventQuery(event.ptr) == 0


def test_the_default_stream_is_synchronous(cupy):
    stream, runtime, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.runtime, cupy.cuda.Event()
    gate = Gate(stream)
    runtime.eventRecord(event.ptr, 0)
    assert runtime.eventQuery(event.ptr) == 0
    runtime.eventRecord(event.ptr, stream.ptr)
    waiter = threading.Thread(target=runtime.streamWaitEvent, args=(0, event.ptr))
    waiter.start()
    gate.open()
    waiter.join(DEADLINE)
    assert not waiter.is_alive()
    assert runtime.eventQuery(event.ptr) == 0


def test_the_default_stream_waits_for_blocking_streams_only(cupy):
    from simulator import streams

    blocking, free = cupy.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    never = Gate(free)
    done: list[bool] = []
    streams.stream_of(blocking.ptr).queue(streams.Operation("noting", lambda: lambda: done.append(True)))
    cupy.cuda.runtime.streamSynchronize(0)
    assert done
    never.open()


def test_a_destroyed_stream_does_what_is_queued(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    gate, event, handle = Gate(stream), cupy.cuda.Event(), stream.ptr
    event.record(stream)
    del stream
    gate.open()
    event.synchronize()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorInvalidResourceHandle"):
        event.record(cupy.cuda.Stream.from_external(Foreign(handle)))


class Foreign:
    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


def test_jitter_makes_streams_overtake_one_another(cupy, monkeypatch):
    monkeypatch.setenv("SIMULATED_GPU_JITTER", "200")
    from simulator import streams

    order: list[int] = []
    both = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for _ in range(20):
        for number, stream in enumerate(both):
            operation = streams.Operation("noting", lambda number=number: lambda: order.append(number))
            streams.stream_of(stream.ptr).queue(operation)
    for stream in both:
        stream.synchronize()
    assert order != [0, 1] * 20


@pytest.mark.parametrize("wrong", [1.5, "1", None])
def test_pointers_are_ints(cupy, wrong):
    with pytest.raises(TypeError):
        cupy.cuda.runtime.eventRecord(wrong, 0)
    with pytest.raises(TypeError):
        cupy.cuda.runtime.memcpyAsync(wrong, 0, 0, 4, 0)


# Devices --------------------------------------------------------------------------------------------------------------


def test_streams_belong_to_devices(cupy):
    stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
    with cupy.cuda.Device(1), pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as error:
        cupy.cuda.runtime.eventRecord(event.ptr, stream.ptr)
    assert error.value.status == 400
    with cupy.cuda.Device(1), pytest.raises(RuntimeError, match="does not match"), stream:
        pass
    assert cupy.cuda.runtime.getDevice() == 0


def test_only_what_makes_a_device_current_touches_it(simulated, cupy):
    def work() -> None:
        cupy.cuda.runtime.getDevice()
        assert simulated.touched("quiet") == set()
        cupy.cuda.runtime.setDevice(1)

    thread = threading.Thread(target=work, name="quiet")
    thread.start()
    thread.join()
    assert simulated.touched("quiet") == {1}


# Memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_memory_that_another_stream_still_uses_must_not_be_freed(simulated, cupy):
    owner, user = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with owner:
        array, other = cupy.empty(10), cupy.empty(10)
    gate = Gate(user)
    cupy.cuda.runtime.memcpyAsync(array.data.ptr, other.data.ptr, 80, 4, user.ptr)
    del array
    with pytest.raises(simulated.Violation, match="use after free"):
        owner.record()
    assert "a copy" in violations_of(simulated)
    gate.open()
    user.synchronize()


def test_memory_may_be_freed_when_its_stream_is_behind_all_use(cupy):
    owner, user = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with owner:
        array, other = cupy.empty(10), cupy.empty(10)
    gate = Gate(user)
    cupy.cuda.runtime.memcpyAsync(array.data.ptr, other.data.ptr, 80, 4, user.ptr)
    owner.wait_event(user.record())
    host = array._host()
    del array
    gate.open()
    owner.synchronize()
    assert np.isnan(host).all()  # somebody else's memory, by now


def test_memory_that_is_allocated_again_is_free_in_the_order_of_its_stream(simulated, cupy):
    owner, user = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    gate = Gate(owner)
    with owner:
        kept: list[Any] = [cupy.empty(3) for _ in range(20)]
        addresses = {array.data.ptr for array in kept}
        kept.clear()
        while not kept or kept[-1].data.ptr not in addresses:
            kept.append(cupy.empty(3))
    with user:
        source = cupy.empty(3)
    cupy.cuda.runtime.memcpyAsync(kept[-1].data.ptr, source.data.ptr, 24, 4, user.ptr)
    assert "race" in violations_of(simulated)
    user.synchronize()
    user.wait_event(owner.record())
    cupy.cuda.runtime.memcpyAsync(kept[-1].data.ptr, source.data.ptr, 24, 4, user.ptr)
    gate.open()
    user.synchronize()


def test_page_locked_memory_must_not_be_freed_under_any_queued_copy(simulated, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.empty(10)
    pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(80), np.float64, 10)
    gate = Gate(stream)
    cupy.cuda.runtime.memcpyAsync(array.data.ptr, pinned.ctypes.data, 80, 4, stream.ptr)
    del pinned
    assert "page-locked" in violations_of(simulated)
    gate.open()
    stream.synchronize()


def test_freed_memory_must_not_be_used(simulated, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array, other = cupy.empty(10), cupy.empty(10)
    address = array.data.ptr
    del array
    cupy.cuda.runtime.memcpyAsync(other.data.ptr, address, 80, 4, stream.ptr)
    assert "are freed" in violations_of(simulated)
    cupy.cuda.runtime.memcpyAsync(other.data.ptr + 512, other.data.ptr, 81, 4, stream.ptr)
    assert "out of bounds" in violations_of(simulated)


def test_strictly_all_memory_is_known(simulated, cupy, monkeypatch):
    monkeypatch.setenv("SIMULATED_GPU_STRICT", "1")
    array, foreign = cupy.asarray(np.zeros(4)), np.zeros(4)
    cupy.cuda.runtime.memcpyAsync(foreign.ctypes.data, array.data.ptr, 32, 4, 0)
    assert "nobody has allocated" in violations_of(simulated)


@pytest.mark.gate
def test_races_are_seen_even_when_they_go_well(simulated, cupy):
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with first:
        array, other = cupy.empty(10), cupy.empty(10)
    copy, gate = cupy.cuda.runtime.memcpyAsync, Gate(first)
    copy(array.data.ptr, other.data.ptr, 80, 4, first.ptr)
    copy(array.data.ptr + 40, other.data.ptr, 8, 4, second.ptr)
    assert "race" in violations_of(simulated)
    second.wait_event(first.record())
    copy(array.data.ptr + 40, other.data.ptr, 8, 4, second.ptr)
    gate.open()
    second.synchronize()


def test_arrays_of_the_device_and_of_the_host_are_not_mixed(cupy):
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(cupy.asarray(np.zeros(3)))
    with pytest.raises(TypeError, match="CPU arrays"):
        cupy.from_dlpack(np.zeros(3))


# Kernels --------------------------------------------------------------------------------------------------------------

KERNEL = r"""
struct Table { float factor; long long target[2]; };

extern "C" __global__ void __launch_bounds__(64) scale(
    const Table table, const float* source, unsigned count, double more
) {
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) ((float*)table.target[1])[index] = source[index] * table.factor + more;
}
"""
TABLE = np.dtype([("factor", "f4"), ("target", "i8", 2)], align=True)


@pytest.mark.gate
def test_kernels_take_their_arguments_by_value(cupy):
    kernel = cupy.RawKernel(KERNEL, "scale", ("-std=c++17",))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        source, target = cupy.asarray(np.arange(100, dtype=np.float32)), cupy.empty(100, np.float32)
    table = np.zeros(1, TABLE)
    table["factor"], table["target"][0, 1] = 2, target.data.ptr
    gate = Gate(stream)
    kernel((2,), (64,), (table, source, np.uint32(100), 0.5), stream=stream)
    table["factor"] = 3  # read when the kernel was launched
    gate.open()
    assert target.get(stream).tolist() == [2 * i + 0.5 for i in range(100)]
    with pytest.raises(TypeError, match="parameters"):
        kernel((2,), (64,), (table, source, 100, 0.5), stream=stream)  # an int has eight bytes
    with pytest.raises(TypeError, match="size one"):
        kernel((2,), (64,), (np.zeros(2), source, np.uint32(1), 0.5), stream=stream)


def test_kernels_hold_the_memory_they_point_to(simulated, cupy):
    kernel = cupy.RawKernel(KERNEL, "scale", ("-std=c++17",))
    stream = cupy.cuda.Stream(non_blocking=True)
    source, target = cupy.empty(100, np.float32), cupy.empty(100, np.float32)
    table = np.zeros(1, TABLE)
    table["target"][0, 1] = target.data.ptr
    gate = Gate(stream)
    kernel((2,), (64,), (table, source, np.uint32(100), 0.5), stream=stream)
    del target
    assert "kernel scale" in violations_of(simulated)
    gate.open()
    stream.synchronize()


# Capture --------------------------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_captured_graph_runs_when_it_is_launched(simulated, cupy):
    origin, side = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    copy = cupy.cuda.runtime.memcpyAsync
    with origin:
        array = [cupy.asarray(np.full(3, float(i))) for i in range(3)]
    simulated.begin_capture(origin)
    copy(array[1].data.ptr, array[0].data.ptr, 24, 4, origin.ptr)
    side.wait_event(origin.record())
    assert side.is_capturing()
    copy(array[2].data.ptr, array[1].data.ptr, 24, 4, side.ptr)
    origin.wait_event(side.record())
    graph = simulated.end_capture(origin)
    assert not side.is_capturing()
    assert array[2].get(origin).tolist() == [2, 2, 2]
    array[0].set(np.full(3, 7.0), origin)
    graph.launch()
    assert array[2].get(origin).tolist() == [7, 7, 7]


def test_a_capture_must_be_joined_and_is_isolated(simulated, cupy):
    origin, side, outside = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
    array, error = cupy.empty(10), cupy.cuda.runtime.CUDARuntimeError
    simulated.begin_capture(origin)
    side.wait_event(origin.record())
    cupy.cuda.runtime.memcpyAsync(array.data.ptr + 40, array.data.ptr, 40, 4, side.ptr)
    with pytest.raises(error, match="unjoined"):
        simulated.end_capture(origin)
    event = outside.record()
    simulated.begin_capture(origin)
    with pytest.raises(error, match="uncaptured work"):
        origin.wait_event(event)
    with pytest.raises(error, match="previous error"):
        simulated.end_capture(origin)


def test_unsafe_calls_of_any_thread_spoil_a_capture(simulated, cupy):
    stream, runtime, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.runtime, cupy.cuda.Event()
    simulated.begin_capture(stream)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(runtime.eventQuery, event.ptr).result() == 900
    with pytest.raises(runtime.CUDARuntimeError, match="previous error"):
        simulated.end_capture(stream)


def test_memory_during_a_capture_comes_from_what_was_freed(simulated, cupy):
    stream, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with other:
        array = cupy.empty(10)
        address = array.data.ptr
        del array
        simulated.begin_capture(stream)
        array = cupy.empty(10)
        assert array.data.ptr == address
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as error:
            cupy.empty(10)
        assert error.value.status == 900
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="previous error"):
        simulated.end_capture(stream)


def test_a_relaxed_thread_may_ask_during_a_capture(simulated, cupy):
    from distrun.runtime.gpu.driver import Driver

    driver, stream = Driver(0), cupy.cuda.Stream(non_blocking=True)
    event, captured = driver.record(stream.ptr), cupy.cuda.Event()

    def ask() -> tuple[bool, int]:
        driver.relax_capture()
        driver.synchronize(event)
        return driver.is_done(event), cupy.cuda.runtime.eventQuery(captured.ptr)

    simulated.begin_capture(stream)
    captured.record(stream)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(ask).result() == (True, 907)
    simulated.end_capture(stream)


# NCCL, ranks in threads -----------------------------------------------------------------------------------------------


class Ranks:
    """Threads that are the ranks of a communicator, with a GPU each."""

    def __init__(self, cupy: ModuleType, size: int) -> None:
        self.cupy, self.size = cupy, size
        self._threads = ThreadPoolExecutor(size)
        self._identity = cupy.cuda.nccl.get_unique_id()

    def run(self, work: Callable[..., Any]) -> list[Any]:
        """Return the results of `work(cupy, communicator, stream)` on all ranks."""
        results = [self._threads.submit(self._work, work, rank) for rank in range(self.size)]
        return [result.result(DEADLINE) for result in results]

    def _work(self, work: Callable[..., Any], rank: int) -> Any:
        with self.cupy.cuda.Device(rank):
            communicator = self.cupy.cuda.nccl.NcclCommunicator(self.size, self._identity, rank)
            with self.cupy.cuda.Stream(non_blocking=True) as stream:
                result = work(self.cupy, communicator, stream)
                communicator.destroy()
                return result

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def ranks(cupy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Ranks]]:
    started: list[Ranks] = []

    def start(size: int) -> Ranks:
        monkeypatch.setenv("SIMULATED_GPUS", str(size))
        started.append(Ranks(cupy, size))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.parametrize("name", ["FLOAT16", "BFLOAT16"])
def test_sixteen_bit_floats_are_summed_in_32_bits(ranks, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype({"FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}[name])
    parts = [np.array(values, dtype) for values in ([256, np.inf, np.nan], [0.75, 1, 1], [0.75, 1, 1])]

    def work(cupy: ModuleType, nccl: Any, stream: Any) -> Any:
        array = cupy.asarray(parts[nccl.rank_id()].view(np.uint16))
        constants = cupy.cuda.nccl
        datatype = getattr(constants, f"NCCL_{name}")
        nccl.allReduce(array.data.ptr, array.data.ptr, 3, datatype, constants.NCCL_SUM, stream.ptr)
        return array.get().view(dtype).astype(np.float32)

    expected = sum(part.astype(np.float32) for part in parts).astype(dtype).astype(np.float32)
    for result in ranks(3).run(work):
        np.testing.assert_array_equal(result, expected)


def test_calls_that_do_not_match_are_an_asynchronous_error(ranks, capfd):
    def work(cupy: ModuleType, nccl: Any, stream: Any) -> int:
        count = 2 + nccl.rank_id()
        array = cupy.empty(4, np.float32)
        nccl.allReduce(array.data.ptr, array.data.ptr, count, cupy.cuda.nccl.NCCL_FLOAT, 0, stream.ptr)
        return _asynchronous_error(cupy, nccl)

    assert ranks(2).run(work) == [5, 5]
    assert "mismatch" in capfd.readouterr().err


def _asynchronous_error(cupy: ModuleType, nccl: Any) -> int:
    """Wait until there is one; then abort."""
    inner = nccl._comm
    with inner._changed:
        inner._changed.wait_for(lambda: inner.status, DEADLINE)
    with pytest.raises(cupy.cuda.nccl.NcclError) as error:
        nccl.check_async_error()
    nccl.abort()
    return int(error.value.status)


def test_abort_releases_the_stream(ranks):
    def work(cupy: ModuleType, nccl: Any, stream: Any) -> bool:
        array = cupy.empty(4, np.float32)
        if nccl.rank_id() == 0:
            nccl.allReduce(array.data.ptr, array.data.ptr, 4, cupy.cuda.nccl.NCCL_FLOAT, 0, stream.ptr)
            event = stream.record()
            is_waiting = cupy.cuda.runtime.eventQuery(event.ptr) == 600
            nccl.abort()
            event.synchronize()
            with pytest.raises(cupy.cuda.nccl.NcclError) as error:
                nccl.check_async_error()
            return is_waiting and nccl.comm == 0 and error.value.status == 4
        return True

    assert ranks(2).run(work) == [True, True]


def test_operations_in_a_graph(ranks, simulated):
    both = threading.Barrier(2, timeout=DEADLINE)

    def work(cupy: ModuleType, nccl: Any, stream: Any) -> float:
        array = cupy.asarray(np.ones(1))
        simulated.begin_capture(stream, simulated.RELAXED)
        nccl.allReduce(array.data.ptr, array.data.ptr, 1, cupy.cuda.nccl.NCCL_DOUBLE, 0, stream.ptr)
        graph = simulated.end_capture(stream)
        both.wait()
        for _ in range(3):
            graph.launch()
        return array.get().item()

    assert ranks(2).run(work) == [8.0, 8.0]


def test_two_ranks_do_not_share_a_gpu(cupy, monkeypatch):
    nccl = cupy.cuda.nccl

    def join(identity: bytes, rank: int) -> int:
        try:
            nccl.NcclCommunicator(2, identity, rank).abort()
        except nccl.NcclError as error:
            return error.status
        return 0

    def statuses() -> list[int]:
        identity = nccl.get_unique_id()
        with ThreadPoolExecutor(2) as both:
            return list(both.map(lambda rank: join(identity, rank), range(2)))

    assert statuses() == [5, 5]
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert statuses() == [0, 0]
    monkeypatch.setenv("SIMULATED_NCCL_VERSION", "22907")
    assert statuses() == [5, 5]


# Real processes -------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
import numpy as np
import cupy, simulator
from cupy.cuda import nccl

rank = int(sys.argv[1])
cupy.cuda.runtime.setDevice(rank)
identity = nccl.get_unique_id() if rank == 0 else bytes.fromhex(sys.stdin.readline())
if rank == 0:
    print(identity.hex(), flush=True)
communicator, stream = nccl.NcclCommunicator(2, identity, rank), cupy.cuda.Stream(non_blocking=True)
with stream:
    array = cupy.asarray(np.arange(100_000, dtype=np.float64) * (rank + 1))
communicator.allReduce(array.data.ptr, array.data.ptr, array.size, nccl.NCCL_DOUBLE, nccl.NCCL_SUM, stream.ptr)
assert array.get(stream).tolist() == [3.0 * i for i in range(100_000)]
assert simulator.touched() == {rank}
"""
END = "communicator.destroy()"
DEATH = """
if rank == 1:
    sys.stdin.readline()
    os._exit(3)
communicator.allReduce(array.data.ptr, array.data.ptr, array.size, nccl.NCCL_DOUBLE, nccl.NCCL_SUM, stream.ptr)
event = stream.record()
print("queued", flush=True)
if "SIMULATED_NCCL_NETWORK" in os.environ:
    inner = communicator._comm
    with inner._changed:
        inner._changed.wait_for(lambda: inner.status == 6)
sys.stdin.readline()
assert cupy.cuda.runtime.eventQuery(event.ptr) == 600
try:
    communicator.check_async_error()
    assert "SIMULATED_NCCL_NETWORK" not in os.environ
except nccl.NcclError as error:
    assert error.status == 6
communicator.abort()
event.synchronize()
"""
LATE = """
communicator.destroy()
with stream:
    other = cupy.empty(10)
cupy.cuda.runtime.memcpyAsync(other.data.ptr + 400, other.data.ptr, 80, 4, stream.ptr)
"""


def processes(tmp_path: Path, text: str, **environ: str) -> list[subprocess.Popen[str]]:
    program = tmp_path / "program.py"
    program.write_text(text)
    environ = {
        **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        **{"PYTHONPATH": str(SIMULATOR), "SIMULATED_GPUS": "2", "SIMULATED_GPU_JITTER": "100", "OMP_NUM_THREADS": "1"},
        **environ,
    }
    pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, str(program)]
    started = [subprocess.Popen([*command, str(rank)], text=True, env=environ, **pipe) for rank in range(2)]
    assert started[0].stdout is not None
    assert started[1].stdin is not None
    started[1].stdin.write(started[0].stdout.readline())
    started[1].stdin.flush()
    return started


@pytest.mark.parametrize("network", [False, True], ids=["shared memory", "network"])
def test_the_death_of_a_rank(tmp_path, network):
    first, second = processes(tmp_path, PROGRAM + DEATH, **({"SIMULATED_NCCL_NETWORK": "1"} if network else {}))
    assert first.stdout.readline() == "queued\n"
    second.communicate("\n", timeout=DEADLINE)
    assert second.returncode == 3
    output, error = first.communicate("\n", timeout=DEADLINE)
    assert (first.returncode, output) == (0, ""), error


@pytest.mark.gate
def test_violations_fail_the_process(tmp_path):
    for process in processes(tmp_path, PROGRAM + LATE):
        _, error = process.communicate(timeout=DEADLINE)
        assert process.returncode == 97
        assert "out of bounds" in error


# Ranks of distrun -----------------------------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.parametrize("size", one_in_gate(2, (1, 1), chosen=1), ids=["host", "hosts"])
def test_ranks_of_distrun_order_their_work(gpu_job, size):
    assert gpu_job(SIMULATOR / "programs" / "ordering.py", size, "none").count("fine") == 2


@pytest.mark.gate
@pytest.mark.parametrize("unordered", one_in_gate("join", "_queue", chosen=1))
def test_a_wait_that_is_left_out_is_noticed(gpu_job, unordered):
    output = gpu_job(SIMULATOR / "programs" / "ordering.py", 2, unordered, fail=True)
    assert "AssertionError" in output or "violation" in output


# Copies between GPUs --------------------------------------------------------------------------------------------------


def test_access_to_a_peer_is_asked_for_and_enabled_once(cupy, monkeypatch):
    runtime = cupy.cuda.runtime
    assert runtime.deviceCanAccessPeer(0, 1) == 1
    runtime.deviceEnablePeerAccess(1)
    with pytest.raises(runtime.CUDARuntimeError, match="PeerAccessAlreadyEnabled"):
        runtime.deviceEnablePeerAccess(1)
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidDevice"):
        runtime.deviceEnablePeerAccess(0)
    monkeypatch.setenv("SIMULATED_GPU_PEERS", "0-1")
    assert runtime.deviceCanAccessPeer(1, 0) == 0
    runtime.setDevice(1)
    with pytest.raises(runtime.CUDARuntimeError, match="PeerAccessUnsupported"):
        runtime.deviceEnablePeerAccess(0)


def test_a_copy_to_a_peer_is_late_timed_and_of_the_memory_that_it_names(cupy):
    runtime = cupy.cuda.runtime
    runtime.setDevice(1)
    target = cupy.empty(5)
    runtime.setDevice(0)
    stream, source = cupy.cuda.Stream(non_blocking=True), cupy.asarray(np.arange(5.0))
    before, after = cupy.cuda.Event(), cupy.cuda.Event()
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
        runtime.memcpyPeerAsync(target.data.ptr, 0, source.data.ptr, 0, 40, stream.ptr)
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidResourceHandle"):
        cupy.cuda.get_elapsed_time(before, after)  # nothing is recorded
    gate = Gate(stream)
    before.record(stream)
    runtime.memcpyPeerAsync(target.data.ptr, 1, source.data.ptr, 0, 40, stream.ptr)
    after.record(stream)
    with pytest.raises(runtime.CUDARuntimeError, match="NotReady"):
        cupy.cuda.get_elapsed_time(before, after)
    assert np.isnan(target._host()).all()
    gate.open()
    after.synchronize()
    assert target._host().tolist() == [0, 1, 2, 3, 4]
    assert cupy.cuda.get_elapsed_time(before, after) > 0
