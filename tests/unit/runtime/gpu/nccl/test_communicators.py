"""Communicators: one per process set, and no rank waits for ever for another that will not come."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from distrun.errors import CollectiveError, JobAbortedError, StallError
from distrun.runtime.gpu.nccl import communicators
from distrun.runtime.gpu.nccl.communicators import Communicators, set_environment
from distrun.runtime.gpu.nccl.library import ITEMSIZES, OPS, NcclError, SingleRankCommunicator
from distrun.runtime.operations.timeouts import Timeouts

DEADLINE = 60.0  # seconds


class Nccl:
    """cupy.cuda.nccl, whose communicators are made as soon as `open` is set."""

    def __init__(self) -> None:
        for name in (*ITEMSIZES, *OPS):
            setattr(self, f"NCCL_{name.upper()}", 0)
        self.open = threading.Event()
        self.entered = threading.Event()
        self.made: list[tuple[int, bytes, int]] = []
        self.ended = threading.Semaphore(0)
        self.log: list[str] = []
        self.error: Exception | None = None
        self.unique_id_error: Exception | None = None

    def get_unique_id(self) -> bytes:
        if self.unique_id_error is not None:
            raise self.unique_id_error
        return bytes(range(128))

    def NcclCommunicator(self, size: int, name: bytes, rank: int) -> Any:  # noqa: N802 - cupy's
        self.entered.set()
        assert self.open.wait(DEADLINE)
        if self.error is not None:
            raise self.error
        self.made.append((size, name, rank))
        return self

    def abort(self) -> None:
        self.log.append("abort")
        self.ended.release()

    def destroy(self) -> None:
        assert self.open.wait(DEADLINE)
        self.log.append("destroy")

    def check_async_error(self) -> None:
        self.log.append("check")

    def allReduce(self, *args: int) -> None:  # noqa: N802 - cupy's
        self.log.append("allReduce")


@pytest.fixture
def nccl() -> Nccl:
    made = Nccl()
    made.open.set()
    return made


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicators, "PEER_CHECK_INTERVAL", 0.002)


def driver_of(stand_ins: SimpleNamespace, nccl: Nccl) -> Any:
    driver = stand_ins.Driver()
    driver.cupy = SimpleNamespace(cuda=SimpleNamespace(nccl=nccl))
    return driver


class FirstRank:
    """Rank 0's host backend, whose broadcasts the other ranks have received."""

    rank, size = 0, 2

    def broadcast(self, array: Any, root: int, what: str) -> None:
        assert root == 0


@pytest.fixture
def connect(stand_ins: SimpleNamespace, nccl: Nccl) -> Callable[..., Communicators]:
    """Return a function that makes the communicators of rank 0 of two; or of another backend."""
    return lambda backend=None, **options: Communicators(
        driver_of(stand_ins, nccl), {0: backend or FirstRank()}, **options
    )


def test_ranks_connect_under_one_unique_id(stand_ins, nccl):
    hosts = stand_ins.ThreadRanks(3)
    drivers = [driver_of(stand_ins, nccl) for _ in range(3)]

    def make(rank: int) -> None:
        made = Communicators(drivers[rank], {0: stand_ins.HostBackend(hosts, rank)})
        first = made.get(0)
        assert (first.size, first.rank) == (3, rank)
        assert made.get(0) is first, "made once"
        made.check()
        made.close()
        with pytest.raises(JobAbortedError, match="closed"):
            made.get(0)

    hosts.run(make)
    assert sorted(nccl.made) == [(3, bytes(range(128)), rank) for rank in range(3)]
    assert nccl.log.count("destroy") == 3
    for driver in drivers:  # the GPU was made current where NCCL asks for it
        assert driver.used_by
        assert threading.get_ident() not in driver.used_by


def test_alone(connect, stand_ins, nccl):
    made = connect(stand_ins.HostBackend(stand_ins.ThreadRanks(1), 0))
    assert isinstance(made.get(), SingleRankCommunicator)
    assert not nccl.made
    made.close()


def test_rank_0s_error_is_raised_on_all_ranks(connect, stand_ins, nccl):
    nccl.unique_id_error = RuntimeError("no socket interface found")
    hosts = stand_ins.ThreadRanks(2)
    texts = []

    def make(rank: int) -> None:
        with pytest.raises(NcclError) as caught:
            connect(stand_ins.HostBackend(hosts, rank)).get()
        texts.append(str(caught.value))

    hosts.run(make)
    assert len(set(texts)) == 1
    assert "rank 0: no socket interface found; set NCCL_SOCKET_IFNAME" in texts[0]


def test_an_error_of_nccl_is_raised_here(connect, nccl):
    nccl.error = RuntimeError("NCCL_ERROR_UNHANDLED_CUDA_ERROR: out of memory")
    with pytest.raises(
        NcclError, match=r"making a communicator failed in NCCL on rank 0: .*out of memory; .*leave it more"
    ):
        connect().get()


def test_a_rank_that_is_gone_is_not_waited_for(connect, nccl):
    nccl.open.clear()
    gone: list[str] = []

    def trouble() -> str | None:
        if nccl.entered.is_set():
            gone.append("rank 1 (process 4242) was killed by signal 9")
        return gone[0] if gone else None

    made = connect(peer_failure=trouble)
    with pytest.raises(CollectiveError, match=r"NCCL on rank 0 connects the GPUs of 2 ranks .*: rank 1 .* was killed"):
        made.get()
    nccl.open.set()  # what comes too late is let go of
    assert nccl.ended.acquire(timeout=DEADLINE)
    assert nccl.log == ["abort"]


def test_a_rank_that_does_not_come_is_waited_for_until_the_stall_timeout(connect, nccl, caplog, monkeypatch):
    nccl.open.clear()
    passed = iter((1200.0, 3200.0))  # seconds at the first look and at the second
    monkeypatch.setattr(communicators, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + next(passed)))
    made = connect(timeouts=Timeouts(warning=1000.0, timeout=3000.0))
    with (
        caplog.at_level(logging.WARNING, "distrun"),
        pytest.raises(StallError, match=r"gave up after 32\d\d s: NCCL on rank 0"),
    ):
        made.get()
    assert re.search(r"waiting for 12\d\d s: NCCL on rank 0 connects the GPUs of 2 ranks", caplog.text)
    nccl.open.set()


def test_an_abort_ends_a_wait(connect, nccl):
    nccl.open.clear()
    made = connect()

    def abort() -> None:
        assert nccl.entered.wait(DEADLINE)
        made.abort("rank 1 is gone")

    aborting = threading.Thread(target=abort)
    aborting.start()
    with pytest.raises(JobAbortedError, match="rank 1 is gone"):
        made.get()
    aborting.join(DEADLINE)
    nccl.open.set()


def test_an_abort_ends_communicators(connect, nccl):
    made = connect()
    communicator = made.get()
    made.abort("rank 1 is gone")
    made.abort("again")
    with pytest.raises(NcclError, match="rank 1 is gone"):
        communicator.all_reduce(1, 2, 3, "float32", "sum", 0)
    with pytest.raises(NcclError, match="rank 1 is gone"):
        made.check()
    made.close()
    assert nccl.log == ["abort"]


def test_closing_ends_though_another_rank_does_not_come(connect, nccl, monkeypatch):
    monkeypatch.setattr(communicators, "CLOSE_TIMEOUTS", Timeouts(0.0, 0.01))
    made = connect()
    made.get()
    nccl.open.clear()
    made.close()
    assert not nccl.log
    nccl.open.set()


def test_closing_makes_no_thread(connect, nccl, monkeypatch):
    made = connect()
    made.get()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")  # Python 3.12, in atexit

    monkeypatch.setattr(threading.Thread, "start", refuse)
    made.close()
    assert nccl.log == ["destroy"]


@pytest.mark.parametrize("end", [Communicators.abort, Communicators.close])
def test_the_gpu_is_current_where_communicators_end(stand_ins, nccl, end):
    driver = driver_of(stand_ins, nccl)
    made = Communicators(driver, {0: FirstRank()})
    made.get()
    driver.used_by.clear()
    end(made)
    assert driver.used_by


def test_an_abort_in_which_nccl_waits_is_left_to_itself(connect, nccl, monkeypatch):
    is_aborting, is_graph_gone = threading.Event(), threading.Event()
    monkeypatch.setattr(nccl, "abort", lambda: (is_aborting.set(), is_graph_gone.wait(DEADLINE)))
    monkeypatch.setattr(communicators, "CLOSE_TIMEOUTS", Timeouts(0.0, 1000.0))
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (2000.0 if is_aborting.is_set() else 0.0))
    monkeypatch.setattr(communicators, "time", clock)
    made = connect()
    made.get()
    made.abort("rank 1 is gone")
    with pytest.raises(NcclError, match="rank 1 is gone"):
        made.check()
    made.close()
    assert not nccl.log
    is_graph_gone.set()


def test_the_environment_for_shared_gpus():
    environ = {"NCCL_MAX_CTAS": "16"}
    set_environment(environ)
    assert environ == {"NCCL_MAX_CTAS": "16", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}


def test_the_environment_is_set_where_gpus_are_shared(stand_ins, nccl, monkeypatch):
    calls: list[str] = []
    monkeypatch.setattr(communicators, "set_environment", lambda: calls.append("set"))
    made = Communicators(driver_of(stand_ins, nccl), {0: FirstRank(), 1: FirstRank()})
    made.get(0, shares_gpus=False)
    assert not calls
    made.get(1, shares_gpus=True)
    assert calls == ["set"]
    made.close()


def test_a_process_sets_communicator_ends_with_the_set(stand_ins, nccl):
    made = Communicators(driver_of(stand_ins, nccl), {0: FirstRank(), 5: FirstRank()})
    first = made.get(0)
    of_set = made.get(5)
    assert of_set is not first
    made.remove(5)
    assert nccl.log == ["destroy"]
    made.remove(5)
    assert nccl.log == ["destroy"]
    assert made.get(0) is first
    assert made.get(5) is not of_set, "a set that has come again"
    made.close()
    assert nccl.log.count("destroy") == 3


def test_nccl_keeps_the_environment_in_which_it_was_first_used(monkeypatch):
    monkeypatch.setattr(communicators, "_is_sharing_refused", False)
    communicators._note_environment({"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    assert communicators.can_share_gpus()
    communicators._note_environment({})
    assert not communicators.can_share_gpus()
    communicators._note_environment({"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    assert not communicators.can_share_gpus()
