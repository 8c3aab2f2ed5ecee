"""NCCL's communicators, through cupy. Calls queue work on a stream, and do not wait for it.

Errors quote NCCL's own message about the cause, which its library keeps and cupy does not show, and name a remedy for
common causes.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from distrun.errors import CollectiveError
from distrun.runtime.gpu.driver import Driver

ITEMSIZES = {
    **{"int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8},
    **{"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8},
}
"""The bytes of an element, by NCCL's element type."""

OPS = ("sum", "prod", "min", "max", "avg")
"""NCCL's operators. `avg` is for floating-point types only."""

ABORT_GRACE = 1.0
"""Seconds that an abort waits for a call in another thread. Only a call that waits for other ranks takes longer."""

_IN_PROGRESS = 7  # ncclInProgress

_REMEDIES = (
    (
        r"duplicate gpu|same gpu/partition",
        "two ranks use one GPU: give each its own (fewer ranks, or another CUDA_VISIBLE_DEVICES), or set "
        "DISTRUN_SHARE_GPUS=1",
    ),
    (
        r"no space left on device|/dev/shm|shared memory (file|segment)",
        "/dev/shm is full or too small: free it, or start the container with --shm-size=1g or --ipc=host",
    ),
    (
        r"no socket interface found",
        "set NCCL_SOCKET_IFNAME to the network interface that connects the ranks, or unset it if it names none of this "
        "host's",
    ),
    (
        r"driver version is insufficient",
        "update the GPU's driver, or install cupy, NCCL and the framework for an older CUDA",
    ),
    (
        r"no cuda-capable device|invalid device ordinal",
        "`distrun doctor` shows which GPUs this host has and a rank may use",
    ),
    (
        r"out of memory",
        "NCCL needs some hundred MB of the GPU's memory: leave it more, or end what else runs on that GPU",
    ),
    (r"mismatched nccl version", "install the same version of NCCL (pip: nvidia-nccl-cu12 or -cu13) on all hosts"),
    (
        r"connection refused|timed out|no route to host|network is unreachable",
        "set NCCL_SOCKET_IFNAME to a network interface that reaches the other hosts, and let no firewall stand between "
        "them",
    ),
    (
        r"remote process exited|connection (closed|reset)|broken pipe",
        "another rank has ended, or the network failed: see what the other ranks say first",
    ),
)
"""Patterns in NCCL's messages and the remedies, for known causes. More specific patterns are first."""

_UNKNOWN = "set NCCL_DEBUG=INFO to see what led to it"


class NcclError(CollectiveError):
    """NCCL failed. The communicator can no longer be used."""


class Communicator:
    """The communicator of a group of ranks. One thread calls it. Another may `check` and `abort` at any time.

    Pointers and streams are addresses. A count is in elements of `dtype`, one of `ITEMSIZES`. `op` is one of `OPS`.
    Every rank of the group makes the same calls in the same order. All methods raise `NcclError`.
    """

    def __init__(self, nccl: Any, size: int, unique_id: bytes, rank: int) -> None:
        """Wait, without a timeout, until all ranks of the group construct it, with their GPUs current.

        Args:
            nccl: the module cupy.cuda.nccl.
            size: the number of ranks.
            unique_id: the result of `unique_id()` on one of the ranks.
            rank: the number of this rank in the group.
        """
        self.size = size
        self.rank = rank
        self._nccl = nccl
        self._types = {name: int(getattr(nccl, f"NCCL_{name.upper()}")) for name in ITEMSIZES}
        self._ops = {name: int(getattr(nccl, f"NCCL_{name.upper()}")) for name in OPS}
        self._inside = threading.RLock()  # held during a call, and during a group
        self._ending = threading.Lock()  # held while checking, aborting or closing
        self._ended: str | None = None
        try:
            self._comm = nccl.NcclCommunicator(size, unique_id, rank)
        except (RuntimeError, KeyError) as error:
            raise failure("making a communicator", rank, error) from None

    def all_reduce(self, source: int, target: int, count: int, dtype: str, op: str, stream: int) -> None:
        """Reduce the ranks' `count` elements into every rank's target, which may be the source."""
        self._run("allreduce", self._comm.allReduce, source, target, count, self._types[dtype], self._ops[op], stream)

    def reduce(self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int) -> None:
        """Reduce the ranks' `count` elements into the root's target. The other ranks' targets are ignored."""
        self._run("reduce", self._comm.reduce, source, target, count, self._types[dtype], self._ops[op], root, stream)

    def reduce_scatter(self, source: int, target: int, count: int, dtype: str, op: str, stream: int) -> None:
        """Reduce the ranks' `size * count` elements. Rank i receives the i-th `count` of them."""
        self._run(
            "reducescatter", self._comm.reduceScatter, source, target, count, self._types[dtype], self._ops[op], stream
        )

    def broadcast(self, source: int, target: int, count: int, dtype: str, root: int, stream: int) -> None:
        """Copy the root's source into every rank's target. The other ranks' sources are ignored."""
        self._run("broadcast", self._comm.broadcast, source, target, count, self._types[dtype], root, stream)

    def all_gather(self, source: int, target: int, count: int, dtype: str, stream: int) -> None:
        """Concatenate the ranks' `count` elements in every rank's target."""
        self._run("allgather", self._comm.allGather, source, target, count, self._types[dtype], stream)

    def send(self, source: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Send `count` elements to the rank `peer`. Exchanges that depend on each other must be in one group."""
        self._run("send", self._comm.send, source, count, self._types[dtype], peer, stream)

    def recv(self, target: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Receive `count` elements from the rank `peer`."""
        self._run("receive", self._comm.recv, target, count, self._types[dtype], peer, stream)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Queue the calls inside the `with` block as one. None takes effect before its end."""
        with self._inside:
            self._run("the start of a group", self._nccl.groupStart)
            try:
                yield
            except BaseException:
                # Groups nest in NCCL: if this one were left open, it would contain the thread's next group. The first
                # error is the one to raise.
                with suppress(RuntimeError, KeyError):
                    self._nccl.groupEnd()
                raise
            self._run("a group of operations", self._nccl.groupEnd)

    def _run(self, operation: str, function: Callable[..., None], *args: int) -> None:
        with self._inside:
            reason = self._ended
            if reason is not None:
                raise NcclError(f"{operation} cannot start in NCCL on rank {self.rank}: {reason}")
            try:
                function(*args)
            except (RuntimeError, KeyError) as error:
                reason = self._why_ended()
                if reason is not None:
                    raise NcclError(f"{operation} was ended in NCCL on rank {self.rank}: {reason}") from None
                raise failure(operation, self.rank, error) from None

    def _why_ended(self) -> str | None:
        # A method, so that type checkers do not assume that the value stays None: another thread may set it.
        return self._ended

    def check(self) -> None:
        """Check for errors of queued operations.

        Raises:
            NcclError: there was an error, or the communicator was aborted or closed.
        """
        reason = self._why_ended()
        if reason is not None:  # before taking `_ending`, which an abort may hold for long
            raise NcclError(f"NCCL cannot be used any more on rank {self.rank}: {reason}")
        with self._ending:
            if self._why_ended() is not None:
                return
            try:
                self._comm.check_async_error()
            except (RuntimeError, KeyError) as error:
                if error.args != (_IN_PROGRESS,):
                    raise failure("an operation that was queued", self.rank, error) from None

    def abort(self, reason: str = "the communicator was aborted") -> None:
        """End queued operations, and a call that waits in another thread. Later calls raise errors with this
        `reason`."""
        if self._why_ended() is not None:  # before taking `_ending`, which a close may hold for long
            return
        with self._ending:
            if self._why_ended() is not None:
                return
            self._ended = reason
            # An abort frees the communicator's memory, so a call that is running, and not waiting for other ranks, must
            # finish first.
            has_lock = self._inside.acquire(timeout=ABORT_GRACE)
            try:
                with suppress(RuntimeError, KeyError):
                    self._comm.abort()
            finally:
                if has_lock:
                    self._inside.release()

    def close(self) -> None:
        """Destroy the communicator. It waits for queued operations, and for the ranks on the same host to call this."""
        with self._ending:
            if self._why_ended() is not None:
                return
            self._ended = "the communicator was closed"
            with self._inside, suppress(RuntimeError, KeyError):
                self._comm.destroy()


class SingleRankCommunicator:
    """The communicator of a world of one, with the methods of `Communicator`. Every call is a copy, without NCCL."""

    size = 1
    rank = 0

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._sent: deque[tuple[int, int]] = deque()

    def all_reduce(self, source: int, target: int, count: int, dtype: str, op: str, stream: int) -> None:
        """Copy the source to the target."""
        self._driver.copy(target, source, count * ITEMSIZES[dtype], stream)

    def reduce(self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int) -> None:
        """Copy the source to the target."""
        self._driver.copy(target, source, count * ITEMSIZES[dtype], stream)

    def reduce_scatter(self, source: int, target: int, count: int, dtype: str, op: str, stream: int) -> None:
        """Copy the source to the target."""
        self._driver.copy(target, source, count * ITEMSIZES[dtype], stream)

    def broadcast(self, source: int, target: int, count: int, dtype: str, root: int, stream: int) -> None:
        """Copy the source to the target."""
        self._driver.copy(target, source, count * ITEMSIZES[dtype], stream)

    def all_gather(self, source: int, target: int, count: int, dtype: str, stream: int) -> None:
        """Copy the source to the target."""
        self._driver.copy(target, source, count * ITEMSIZES[dtype], stream)

    def send(self, source: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Record the source for `recv`."""
        self._sent.append((source, count * ITEMSIZES[dtype]))

    def recv(self, target: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Copy from the oldest source that was sent and not received yet."""
        source, nbytes = self._sent.popleft()
        self._driver.copy(target, source, nbytes, stream)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Do nothing: the calls inside are queued one by one."""
        yield

    def check(self) -> None:
        """Do nothing: copies report no errors here."""

    def abort(self, reason: str = "") -> None:
        """Do nothing: no call waits for another rank."""

    def close(self) -> None:
        """Do nothing: it holds nothing."""


AnyCommunicator = Communicator | SingleRankCommunicator


def unique_id(nccl: Any) -> bytes:
    """Return a new id of 128 bytes for a group of ranks. One rank makes it and sends it to the others.

    Raises:
        NcclError: NCCL failed. It may have found no network interface.
    """
    try:
        return bytes(nccl.get_unique_id())
    except (RuntimeError, KeyError) as error:
        raise failure("making a name for the group", 0, error) from None


def failure(operation: str, rank: int, error: Exception) -> NcclError:
    """Return the error to raise in place of `error`, which cupy has just raised on this thread."""
    # cupy raises KeyError for a status that is missing in its table of names, as the newest ones are.
    name = f"NCCL status {error.args[0]}" if isinstance(error, KeyError) else str(error)
    line = last_line()
    told = f"{line} [{name}]" if line else name
    return NcclError(f"{operation} failed in NCCL on rank {rank}: {told}; {remedy(told)}")


def remedy(told: str) -> str:
    """Return the remedy for an error with the text `told`, as part of a sentence."""
    return next((advice for pattern, advice in _REMEDIES if re.search(pattern, told.lower())), _UNKNOWN)


def last_line() -> str:
    """Return NCCL's message for the last error in this process, or "" if there was none or NCCL is not loaded."""
    try:
        # RTLD_NOLOAD only finds a library that is already loaded: the one that cupy uses, by its soname.
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        get_last_error = library.ncclGetLastError  # since NCCL 2.13
    except (OSError, AttributeError):
        return ""
    get_last_error.restype = ctypes.c_char_p
    get_last_error.argtypes = [ctypes.c_void_p]
    text: bytes | None = get_last_error(None)
    return " ".join((text or b"").decode(errors="replace").split())
