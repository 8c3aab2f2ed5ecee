"""The communicators of a rank's GPU, one per process set, made when they are first needed."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import TypeVar

import numpy as np

from distrun.errors import JobAbortedError, StallError
from distrun.runtime.backends.base import Backend
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.nccl import Alone, AnyCommunicator, Communicator, NcclError, unique_id
from distrun.runtime.operations.timeouts import FOREVER, Timeouts, WaitTimer

LOOK = 0.05
"""Seconds between two looks at whether a rank that we wait for will come."""

CLOSING = Timeouts(0.0, 10.0)
"""How long the end of a communicator is waited for."""

_MESSAGE = 2048  # bytes; an error's text is cut off there

_SHARING = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    # The ranks' kernels wait for each other, so they should find room on the GPU side by side.
    "NCCL_MAX_CTAS": "2",
    # Sums formed by the switch between GPUs presuppose that each rank has one.
    "NCCL_NVLS_ENABLE": "0",
}

_T = TypeVar("_T")


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Allow NCCL several ranks on a GPU, before it first looks. What the user has set stays."""
    for name, value in _SHARING.items():
        environ.setdefault(name, value)


class Communicators:
    """One thread asks for communicators; another one may `check` and `abort`, also while the first is waiting."""

    def __init__(
        self,
        driver: Driver,
        host: Backend,
        timeouts: Timeouts = FOREVER,
        trouble: Callable[[], str | None] = lambda: None,
        shares: bool = False,
    ) -> None:
        """
        Args:
            host: tells the ranks what their group is known by.
            patience: how long other ranks are waited for.
            trouble: why a rank will not come any more, if that is known.
            shares: whether some ranks share a GPU.
        """
        self._progress_thread = driver
        self._host = host
        self._timeouts = timeouts
        self._trouble = trouble
        self._communicators: dict[int, AnyCommunicator] = {}
        self._lock = threading.Lock()
        self._aborted: str | None = None
        self._helper: _Helper | None = None
        if shares and host.size > 1:
            set_environment()

    def get(self, process_set: int = 0) -> AnyCommunicator:
        """The communicator of a process set; all its ranks ask for it at the same place in their order of operations.

        Raises:
            NcclError: NCCL failed. The other ranks wait, and must be told.
            JobAbortedError: a rank will not come any more.
            StallError: it did not come within the stall timeout.
        """
        known = self._communicators.get(process_set)
        if known is not None:
            return known
        reason = self._why_aborted()
        if reason is not None:
            raise JobAbortedError(reason)
        made = Alone(self._progress_thread) if self._host.size == 1 else self._make()
        with self._lock:
            reason = self._why_aborted()
            if reason is None:
                self._communicators[process_set] = made
                return made
        made.abort(reason)
        raise JobAbortedError(reason)

    def _make(self) -> Communicator:
        nccl, size, rank = self._progress_thread.cupy.cuda.nccl, self._host.size, self._host.rank
        name = self._name_of_group()

        def make() -> Communicator:
            with self._progress_thread.use():
                return Communicator(nccl, size, name, rank)

        def trouble() -> str | None:
            return self._why_aborted() or self._trouble()

        def dispose(late: Communicator) -> None:
            with self._progress_thread.use():
                late.abort()

        self._helper = helper = self._helper or _Helper()
        what = f"NCCL on rank {rank} connects the GPUs of {size} ranks (NCCL_DEBUG=INFO shows how far it is)"
        return _watched(helper, make, dispose, what, self._timeouts, trouble)

    def _name_of_group(self) -> bytes:
        """What NCCL knows the group by; made by one rank and told to the others, or its error is."""
        error, text = False, b""
        if self._host.rank == 0:
            try:
                text = unique_id(self._progress_thread.cupy.cuda.nccl)
            except NcclError as reason:
                error, text = True, str(reason).encode()[:_MESSAGE]
        head, body = np.array([error, len(text)], np.int64), np.zeros(_MESSAGE, np.uint8)
        body[: len(text)] = np.frombuffer(text, np.uint8)
        message = np.concatenate([head.view(np.uint8), body])
        self._host.broadcast(message, 0, "the meeting of the ranks' GPUs")
        error, length = message[: head.nbytes].view(np.int64).tolist()
        text = message[head.nbytes : head.nbytes + length].tobytes()
        if error:
            raise NcclError(text.decode(errors="replace"))
        return text

    def _why_aborted(self) -> str | None:
        return self._aborted  # which another thread may have set since we last looked

    def check(self) -> None:
        """Ask all communicators for errors of what was queued; raises `NcclError`."""
        for communicator in list(self._communicators.values()):
            communicator.check()

    def abort(self, reason: str = "the communicators were aborted") -> None:
        """End what is queued, and whoever waits for other ranks here; calls from now on raise, with this reason."""
        with self._lock:
            if self._aborted is None:
                self._aborted = reason
        self._end(lambda communicator: communicator.abort(reason), CLOSING, lambda: None)

    def close(self, timeouts: Timeouts | None = None) -> None:
        """Let go of all, unless they have been aborted. Ranks of one host wait for each other there, so the wait has an end if
        one does not come."""
        if self._aborted is None:
            self._aborted = "the communicators were closed"
            self._end(lambda communicator: communicator.close(), timeouts or CLOSING, self._trouble)
        self._communicators.clear()
        if self._helper is not None:
            self._helper.end()

    def _end(
        self, end: Callable[[AnyCommunicator], None], timeouts: Timeouts, trouble: Callable[[], str | None]
    ) -> None:
        """End all communicators. NCCL waits there until all CUDA graphs are gone that contain calls of it."""
        communicators = list(self._communicators.values())

        def work() -> None:
            with self._progress_thread.use():  # or NCCL would make a context on the thread's GPU, to which it returns
                for communicator in communicators:
                    end(communicator)

        if communicators and self._helper is not None:
            with suppress(JobAbortedError, StallError):  # what they hold goes with the process
                _watched(self._helper, work, lambda _: None, "NCCL is closed", timeouts, trouble)


class _Helper:
    """A thread for what may wait for other ranks and cannot be interrupted; one thing after the other.

    It stays, to close what it has made: Python 3.12 makes no threads any more when the interpreter exits.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="distrun-nccl", daemon=True).start()

    def start(self, work: Callable[[], None]) -> None:
        """Let it do `work`, which raises nothing, next."""
        self._work.put(work)

    def end(self) -> None:
        """Let it end when it has done everything."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _watched(
    helper: _Helper,
    work: Callable[[], _T],
    dispose: Callable[[_T], None],
    what: str,
    timeouts: Timeouts,
    trouble: Callable[[], str | None],
) -> _T:
    """Do something that may wait for other ranks, and cannot be interrupted, in the helper's thread; its result.

    Args:
        dispose: lets go of a result that comes when nobody waits for it any more.

    Raises:
        JobAbortedError: there is trouble. The thread is left to itself, as with the next.
        StallError: patience is over.
    """
    results: list[_T] = []
    errors: list[BaseException] = []
    is_done = threading.Event()
    lock = threading.Lock()
    is_left = False

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            errors.append(error)
        else:
            with lock:
                is_late = is_left
                results.append(result)
            if is_late:
                dispose(result)
        is_done.set()

    helper.start(run)
    wait_timer = WaitTimer(timeouts, lambda: what, None)
    try:
        while not is_done.wait(LOOK):
            reason = trouble()
            if reason is not None:
                raise JobAbortedError(f"{what}: {reason}")
            wait_timer.look(time.monotonic())
    except BaseException:
        with lock:
            is_left = True
        if results:  # it has come after all
            dispose(results[0])
        raise
    if errors:
        raise errors[0]
    return results[0]
