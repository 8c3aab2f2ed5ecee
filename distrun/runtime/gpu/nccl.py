"""Communicators of NCCL, through cupy: the ranks' GPUs as one group. Calls queue work on a stream; none waits for it.

What goes wrong in NCCL is told with NCCL's own line about it, which its library keeps and cupy does not show, and with a
remedy where the cause is a common one.
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
"""The element types NCCL knows, and the bytes of an element."""

OPS = ("sum", "prod", "min", "max", "avg")
"""How NCCL combines elements; `avg` is meant for floating-point types."""

GRACE = 1.0
"""Seconds that an abort lets a call in another thread come to its end. Only one that waits for other ranks takes as long."""

_IN_PROGRESS = 7  # ncclInProgress

_REMEDIES = (
    (
        r"duplicate gpu|same gpu/partition",
        "two ranks use one GPU: give each its own (fewer ranks, or another CUDA_VISIBLE_DEVICES), or set DISTRUN_SHARE_GPUS=1",
    ),
    (
        r"no space left on device|/dev/shm|shared memory (file|segment)",
        "/dev/shm is full or too small: free it, or start the container with --shm-size=1g or --ipc=host",
    ),
    (
        r"no socket interface found",
        "set NCCL_SOCKET_IFNAME to the network interface that connects the ranks, or unset it if it names none of this host's",
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
        "set NCCL_SOCKET_IFNAME to a network interface that reaches the other hosts, and let no firewall stand between them",
    ),
    (
        r"remote process exited|connection (closed|reset)|broken pipe",
        "another rank has ended, or the network failed: see what the other ranks say first",
    ),
)
"""Known causes by a pattern in NCCL's words, the more telling first."""

_UNKNOWN = "set NCCL_DEBUG=INFO to see what led to it"


class NcclError(CollectiveError):
    """NCCL failed. The communicator cannot be used any more."""


class Communicator:
    """A group of ranks with one GPU each. One thread calls; another one may `check` and `abort` at any time.

    Pointers and streams are addresses; a count is in elements of `dtype`, one of `ITEMSIZES`; `op` is one of `OPS`. Every rank
    of the group makes the same calls in the same order. All methods raise `NcclError`.
    """

    def __init__(self, nccl: Any, size: int, unique_id: bytes, rank: int) -> None:
        """Waits until all ranks of the group have come here, with their GPUs current; without limit.

        Args:
            nccl: the module cupy.cuda.nccl.
            unique_id: what `unique_id()` gave one of the ranks.
        """
        self.size = size
        self.rank = rank
        self._nccl = nccl
        self._types = {name: int(getattr(nccl, f"NCCL_{name.upper()}")) for name in ITEMSIZES}
        self._ops = {name: int(getattr(nccl, f"NCCL_{name.upper()}")) for name in OPS}
        self._inside = threading.RLock()  # held by a call, and by a group
        self._ending = threading.Lock()  # held by who checks, aborts or closes
        self._ended: str | None = None
        try:
            self._comm = nccl.NcclCommunicator(size, unique_id, rank)
        except (RuntimeError, KeyError) as error:
            raise failure("making a communicator", rank, error) from None

    def all_reduce(self, source: int, target: int, count: int, dtype: str, op: str, stream: int) -> None:
        """Reduce everybody's `count` elements into everybody's target, which may be the source."""
        self._run("allreduce", self._comm.allReduce, source, target, count, self._types[dtype], self._ops[op], stream)

    def reduce(self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int) -> None:
        """Reduce everybody's `count` elements into the root's target; the others' counts for nothing."""
        self._run("reduce", self._comm.reduce, source, target, count, self._types[dtype], self._ops[op], root, stream)

    def reduce_scatter(self, source: int, target: int, count: int, dtype: str, op: str, stream: int) -> None:
        """Reduce everybody's `size * count` elements; rank i gets the i-th `count` of them."""
        self._run(
            "reducescatter", self._comm.reduceScatter, source, target, count, self._types[dtype], self._ops[op], stream
        )

    def broadcast(self, source: int, target: int, count: int, dtype: str, root: int, stream: int) -> None:
        """Copy the root's source into everybody's target; the others' sources count for nothing."""
        self._run("broadcast", self._comm.broadcast, source, target, count, self._types[dtype], root, stream)

    def all_gather(self, source: int, target: int, count: int, dtype: str, stream: int) -> None:
        """Put everybody's `count` elements one after the other into everybody's target."""
        self._run("allgather", self._comm.allGather, source, target, count, self._types[dtype], stream)

    def send(self, source: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Send to a rank, which receives as much; several exchanges belong into one group, or they wait for each other."""
        self._run("send", self._comm.send, source, count, self._types[dtype], peer, stream)

    def recv(self, target: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Receive from a rank what it sends."""
        self._run("receive", self._comm.recv, target, count, self._types[dtype], peer, stream)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Queue the calls made inside as one; none has effect before the end."""
        with self._inside:
            self._run("the start of a group", self._nccl.groupStart)
            try:
                yield
            except BaseException:
                with suppress(
                    RuntimeError, KeyError
                ):  # told already; the thread's next group must not be part of this one
                    self._nccl.groupEnd()
                raise
            self._run("a group of operations", self._nccl.groupEnd)

    def _run(self, operation: str, function: Callable[..., None], *args: int) -> None:
        with self._inside:
            reason = self._why_ended()
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
        return self._ended  # which another thread may have set since we last looked

    def check(self) -> None:
        """Ask for errors of what was queued before.

        Raises:
            NcclError: there is one, or the communicator was aborted.
        """
        reason = self._why_ended()
        if reason is not None:  # while it is being ended, too
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
        """End what is queued, and a call that waits in another thread; every call from now on raises, with this reason."""
        if self._why_ended() is not None:  # while it is being closed, too
            return
        with self._ending:
            if self._why_ended() is not None:
                return
            self._ended = reason
            # The communicator's memory goes: a call that is on its way through it, and not waiting there, is let through.
            is_ours = self._inside.acquire(timeout=GRACE)
            try:
                with suppress(RuntimeError, KeyError):
                    self._comm.abort()
            finally:
                if is_ours:
                    self._inside.release()

    def close(self) -> None:
        """Let go of it; waits for what is queued, and for the ranks on the same host to do the same."""
        with self._ending:
            if self._why_ended() is not None:
                return
            self._ended = "the communicator was closed"
            with self._inside, suppress(RuntimeError, KeyError):
                self._comm.destroy()


class Alone:
    """The communicator of a world of one, with the methods of `Communicator`: everything is a copy, and NCCL is not needed."""

    size = 1
    rank = 0

    def __init__(self, driver: Driver) -> None:
        self._progress_thread = driver
        self._sent: deque[tuple[int, int]] = deque()

    def all_reduce(self, source: int, target: int, count: int, dtype: str, op: str, stream: int) -> None:
        """Copy."""
        self._progress_thread.copy(target, source, count * ITEMSIZES[dtype], stream)

    def reduce(self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int) -> None:
        """Copy."""
        self._progress_thread.copy(target, source, count * ITEMSIZES[dtype], stream)

    def reduce_scatter(self, source: int, target: int, count: int, dtype: str, op: str, stream: int) -> None:
        """Copy."""
        self._progress_thread.copy(target, source, count * ITEMSIZES[dtype], stream)

    def broadcast(self, source: int, target: int, count: int, dtype: str, root: int, stream: int) -> None:
        """Copy."""
        self._progress_thread.copy(target, source, count * ITEMSIZES[dtype], stream)

    def all_gather(self, source: int, target: int, count: int, dtype: str, stream: int) -> None:
        """Copy."""
        self._progress_thread.copy(target, source, count * ITEMSIZES[dtype], stream)

    def send(self, source: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Remember what is sent, for `recv`."""
        self._sent.append((source, count * ITEMSIZES[dtype]))

    def recv(self, target: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Copy what was sent first."""
        source, nbytes = self._sent.popleft()
        self._progress_thread.copy(target, source, nbytes, stream)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Nothing to do: the calls inside are queued one by one."""
        yield

    def check(self) -> None:
        """Nothing can be wrong."""

    def abort(self, reason: str = "") -> None:
        """Nobody waits."""

    def close(self) -> None:
        """Nothing to let go of."""


AnyCommunicator = Communicator | Alone


def unique_id(nccl: Any) -> bytes:
    """What a group is known by, 128 bytes; one of its ranks makes it and the others get it.

    Raises:
        NcclError: NCCL finds no network interface, say.
    """
    try:
        return bytes(nccl.get_unique_id())
    except (RuntimeError, KeyError) as error:
        raise failure("making a name for the group", 0, error) from None


def failure(operation: str, rank: int, error: Exception) -> NcclError:
    """The error to raise for one that cupy raised on this thread just now."""
    # cupy looks the name of a status up in a table, in which the newest ones are missing.
    name = f"NCCL status {error.args[0]}" if isinstance(error, KeyError) else str(error)
    line = last_line()
    told = f"{line} [{name}]" if line else name
    return NcclError(f"{operation} failed in NCCL on rank {rank}: {told}; {remedy(told)}")


def remedy(told: str) -> str:
    """What to do about what NCCL says, in part of a sentence."""
    return next((advice for pattern, advice in _REMEDIES if re.search(pattern, told.lower())), _UNKNOWN)


def last_line() -> str:
    """NCCL's own words for what went wrong last in this process; empty where nothing did, or NCCL is not loaded."""
    try:
        library = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOW | os.RTLD_NOLOAD)  # the one cupy uses, by its soname
        get_last_error = library.ncclGetLastError  # since NCCL 2.13
    except (OSError, AttributeError):
        return ""
    get_last_error.restype = ctypes.c_char_p
    get_last_error.argtypes = [ctypes.c_void_p]
    text: bytes | None = get_last_error(None)
    return " ".join((text or b"").decode(errors="replace").split())
