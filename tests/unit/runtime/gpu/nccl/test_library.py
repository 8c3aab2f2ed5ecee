"""Communicators over a module that plays cupy.cuda.nccl; and what is asked of the real one, where it is installed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from in_process.calls import DEADLINE, started

from distrun.runtime.gpu.nccl import library as nccl
from distrun.runtime.gpu.nccl.library import (
    ITEMSIZES,
    OPS,
    Communicator,
    NcclError,
    SingleRankCommunicator,
    remedy,
    unique_id,
)

STREAM = 7


class Error(RuntimeError):
    """NCCL's error as cupy has it, with its status."""


class Fake:
    """The module cupy.cuda.nccl: notes the calls, and fails where a test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.failing: dict[str, Exception] = {}
        self.blocking: dict[str, threading.Event] = {}
        self.entered = threading.Event()
        for number, name in enumerate(ITEMSIZES):
            setattr(self, f"NCCL_{name.upper()}", 100 + number)
        for number, name in enumerate(OPS):
            setattr(self, f"NCCL_{name.upper()}", 200 + number)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append((name, *args))
            if name in self.blocking:
                self.entered.set()
                assert self.blocking[name].wait(DEADLINE)
            if name in self.failing:
                raise self.failing[name]
            if name == "NcclCommunicator":
                return self
            return b"u" * 128

        if name.startswith("__"):
            raise AttributeError(name)
        return call


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def communicator(fake: Fake) -> Communicator:
    made = Communicator(fake, 4, b"u" * 128, 2)
    assert fake.calls.pop() == ("NcclCommunicator", 4, b"u" * 128, 2)
    return made


def test_calls_arrive_as_cupy_wants_them(communicator, fake):
    f32, u8, total = fake.NCCL_FLOAT32, fake.NCCL_UINT8, fake.NCCL_SUM
    communicator.all_reduce(1, 2, 3, "float32", "sum", STREAM)
    communicator.reduce(1, 2, 3, "float32", "sum", 0, STREAM)
    communicator.reduce_scatter(1, 2, 3, "float32", "sum", STREAM)
    with communicator.group():
        communicator.broadcast(1, 2, 3, "uint8", 0, STREAM)
        communicator.all_gather(1, 2, 3, "uint8", STREAM)
    communicator.send(1, 3, "uint8", 0, STREAM)
    communicator.recv(2, 3, "uint8", 0, STREAM)
    communicator.check()
    assert fake.calls == [
        ("allReduce", 1, 2, 3, f32, total, STREAM),
        ("reduce", 1, 2, 3, f32, total, 0, STREAM),
        ("reduceScatter", 1, 2, 3, f32, total, STREAM),
        ("groupStart",),
        ("broadcast", 1, 2, 3, u8, 0, STREAM),
        ("allGather", 1, 2, 3, u8, STREAM),
        ("groupEnd",),
        ("send", 1, 3, u8, 0, STREAM),
        ("recv", 2, 3, u8, 0, STREAM),
        ("check_async_error",),
    ]


def test_an_error_tells_operation_rank_own_line_of_nccl_and_remedy(communicator, fake, monkeypatch):
    monkeypatch.setattr(nccl, "last_line", lambda: "Call to connect returned Connection refused")
    fake.failing["allReduce"] = Error("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
    with pytest.raises(NcclError) as caught:
        communicator.all_reduce(1, 2, 3, "float32", "sum", STREAM)
    assert str(caught.value) == (
        "allreduce failed in NCCL on rank 2: Call to connect returned Connection refused [NCCL_ERROR_SYSTEM_ERROR: "
        "unhandled system error]; set NCCL_SOCKET_IFNAME to a network interface that reaches the other hosts, and let "
        "no firewall stand between them"
    )


def test_a_status_that_cupy_does_not_know(communicator, fake):
    fake.failing["check_async_error"] = KeyError(8)
    with pytest.raises(NcclError, match="queued failed in NCCL on rank 2: NCCL status 8; set NCCL_DEBUG=INFO"):
        communicator.check()
    fake.failing["check_async_error"] = KeyError(7)  # in progress
    communicator.check()


@pytest.mark.parametrize(
    ("told", "advice"),
    [
        ("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 3b000", "DISTRUN_SHARE_GPUS=1"),
        ("Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1", "DISTRUN_SHARE_GPUS=1"),
        (
            "Error: failed to extend /dev/shm/nccl-8uTpQn to 33030532 bytes, error: No space left on device (28)",
            "--shm-size",
        ),
        ("Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
        ("Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'", "update the GPU's driver"),
        ("Cuda failure 2 'out of memory'", "some hundred MB"),
        ("Cuda failure 'no CUDA-capable device is detected'", "distrun doctor"),
        ("Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22705", "same version"),
        ("NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error", "another rank has ended"),
        ("socketProgress: Connection closed by remote peer node2<41234>", "another rank has ended"),
        ("Cuda failure 'an illegal memory access was encountered'", "NCCL_DEBUG=INFO"),
    ],
)
def test_remedies(told, advice):
    assert advice in remedy(told)


def test_failing_to_make_one(fake):
    fake.failing["NcclCommunicator"] = Error("NCCL_ERROR_INVALID_USAGE: invalid usage")
    with pytest.raises(NcclError, match="making a communicator failed in NCCL on rank 1: NCCL_ERROR_INVALID_USAGE"):
        Communicator(fake, 2, b"", 1)
    fake.failing["get_unique_id"] = Error("NCCL_ERROR_INTERNAL_ERROR: no socket interface found")
    with pytest.raises(NcclError, match="NCCL_SOCKET_IFNAME"):
        unique_id(fake)


def test_a_group_ends_whatever_happens_inside(communicator, fake):
    fake.failing = {"send": Error("first"), "groupEnd": Error("second")}
    with pytest.raises(NcclError, match="send failed in NCCL on rank 2: first"), communicator.group():
        communicator.send(1, 3, "uint8", 0, STREAM)
    assert [call[0] for call in fake.calls] == ["groupStart", "send", "groupEnd"]
    with pytest.raises(NcclError, match="a group of operations failed in NCCL on rank 2: second"), communicator.group():
        pass


def test_after_an_abort_every_call_raises(communicator, fake):
    communicator.abort("rank 1 is gone")
    communicator.abort("again")
    communicator.close()
    assert fake.calls == [("abort",)]
    with pytest.raises(NcclError, match="allreduce cannot start in NCCL on rank 2: rank 1 is gone"):
        communicator.all_reduce(1, 2, 3, "float32", "sum", STREAM)
    with pytest.raises(NcclError, match="rank 1 is gone"), communicator.group():
        pass
    with pytest.raises(NcclError, match="rank 1 is gone"):
        communicator.check()
    assert fake.calls == [("abort",)]


def test_closing_destroys_once(communicator, fake):
    communicator.close()
    communicator.close()
    communicator.abort()
    assert fake.calls == [("destroy",)]


def test_an_abort_ends_a_call_that_waits_in_another_thread(communicator, fake, monkeypatch):
    monkeypatch.setattr(nccl, "ABORT_GRACE", 0.01)
    fake.blocking["groupEnd"] = threading.Event()
    fake.failing["groupEnd"] = Error("NCCL_ERROR_INTERNAL_ERROR: internal error")

    def wait():
        with communicator.group():
            communicator.send(1, 3, "uint8", 0, STREAM)

    waiting = started(wait)
    assert fake.entered.wait(DEADLINE)
    communicator.abort("rank 1 is gone")
    assert fake.calls[-1] == ("abort",)
    fake.blocking["groupEnd"].set()
    with pytest.raises(NcclError, match=r"^a group of operations was ended in NCCL on rank 2: rank 1 is gone$"):
        waiting.result(DEADLINE)


def test_alone_everything_is_a_copy(stand_ins):
    driver = stand_ins.Driver()
    alone = SingleRankCommunicator(driver)
    source, target = bytearray(b"abcdefgh"), bytearray(8)
    here, there = (stand_ins.buffer_of(np.frombuffer(memory, np.uint8)).pointer for memory in (source, target))
    with alone.group():
        alone.send(here, 2, "uint8", 0, STREAM)
        alone.send(here + 4, 1, "float32", 0, STREAM)
        alone.recv(there, 2, "uint8", 0, STREAM)
        alone.recv(there + 4, 1, "float32", 0, STREAM)
    assert target == b"ab\0\0efgh"
    for copy in (alone.all_reduce, alone.reduce_scatter):
        copy(here, there, 2, "float32", "avg", STREAM)
    alone.reduce(here, there, 2, "float32", "avg", 0, STREAM)
    alone.broadcast(here, there, 8, "uint8", 0, STREAM)
    alone.all_gather(here, there, 8, "uint8", STREAM)
    assert target == source
    assert [entry[1] for entry in driver.log] == [2, 4, 8, 8, 8, 8, 8]
    alone.check()
    alone.abort()
    alone.close()
