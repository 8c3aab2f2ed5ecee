# ruff: noqa: N802, N803
"""NCCL, with cupy's names and signatures."""

from __future__ import annotations

import sys
from typing import Any

from simulator import communicators, hub
from simulator.communicators import Communicator, Refused
from simulator.machine import integer, size
from simulator.recorder import record

available = True

NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
NCCL_INT8 = NCCL_CHAR = 0
NCCL_UINT8 = 1
NCCL_INT32 = NCCL_INT = 2
NCCL_UINT32 = 3
NCCL_INT64 = 4
NCCL_UINT64 = 5
NCCL_FLOAT16 = NCCL_HALF = 6
NCCL_FLOAT32 = NCCL_FLOAT = 7
NCCL_FLOAT64 = NCCL_DOUBLE = 8
NCCL_BFLOAT16 = 9

_ERRORS = {
    0: "NCCL_ERROR_SUCCESS: no error",
    1: "NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    2: "NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    3: "NCCL_ERROR_INTERNAL_ERROR: internal error - please report this issue to the NCCL developers",
    4: "NCCL_ERROR_INVALID_ARGUMENT: invalid argument (run with NCCL_DEBUG=WARN for details)",
    5: "NCCL_ERROR_INVALID_USAGE: invalid usage (run with NCCL_DEBUG=WARN for details)",
    6: "NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error",
}


class NcclError(RuntimeError):
    """An ncclResult_t that is not success; cupy knows those up to 6 only, and raises KeyError for others."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(_ERRORS[status])

    def __reduce__(self) -> Any:
        return type(self), (self.status,)


def get_version() -> int:
    return communicators.version()


def get_unique_id() -> bytes:
    record("get_unique_id")
    return communicators.unique_id()


def groupStart() -> None:
    record("groupStart")
    communicators.group_start()


def groupEnd() -> None:
    record("groupEnd")
    try:
        communicators.group_end()
    except Refused as refusal:
        raise NcclError(refusal.status) from None


class NcclCommunicator:
    """One rank; the constructor returns when all ranks have called theirs."""

    def __init__(self, ndev: int, commId: bytes, rank: int, config: None = None) -> None:
        self._comm: Communicator | None = None
        if not isinstance(commId, bytes):
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(commId).__name__})")
        if len(commId) != hub.ID_BYTES:
            raise ValueError(f"commId length {len(commId)} != {hub.ID_BYTES}.")
        record("NcclCommunicator", size=ndev, rank=rank)
        try:
            self._comm = Communicator(integer(ndev), commId, integer(rank))
        except Refused as refusal:
            raise NcclError(refusal.status) from None

    def __del__(self, is_finalizing: Any = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.destroy()

    @property
    def comm(self) -> int:
        return self._comm.handle if self._comm else 0

    def destroy(self) -> None:
        communicator, self._comm = self._comm, None
        if communicator:
            communicator.destroy()

    def abort(self) -> None:
        communicator, self._comm = self._comm, None
        if communicator:
            communicator.abort()

    def _communicator(self) -> Communicator:
        if self._comm is None:
            raise NcclError(hub.INVALID_ARGUMENT)
        return self._comm

    def device_id(self) -> int:
        return self._communicator().device

    def rank_id(self) -> int:
        return self._communicator().rank

    def size(self) -> int:
        return self._communicator().size

    def check_async_error(self) -> None:
        if status := self._communicator().status:
            raise NcclError(status)

    def _call(
        self, name: str, stream: int, source: int, target: int, count: int, datatype: int, op: int = 0, root: int = 0
    ) -> None:
        source, target, stream = integer(source), integer(target), integer(stream)
        count, datatype, op, root = size(count), integer(datatype), integer(op), integer(root)
        record(name, stream, source=source, target=target, count=count, datatype=datatype, op=op, root=root)
        try:
            self._communicator().call(name, stream, source, target, count, datatype, op, root)
        except Refused as refusal:
            raise NcclError(refusal.status) from None

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        self._call("allReduce", stream, sendbuf, recvbuf, count, datatype, op)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        self._call("reduce", stream, sendbuf, recvbuf, count, datatype, op, root)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self._call("broadcast", stream, sendbuff, recvbuff, count, datatype, 0, root)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        self._call("reduceScatter", stream, sendbuf, recvbuf, recvcount, datatype, op)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._call("allGather", stream, sendbuf, recvbuf, count, datatype)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call("send", stream, sendbuf, 0, count, datatype, 0, peer)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call("recv", stream, 0, recvbuf, count, datatype, 0, peer)
