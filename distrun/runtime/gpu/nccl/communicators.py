"""The NCCL communicators of a rank's GPU: one per process set, and one per queue, made when they are first needed."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np

from distrun.errors import JobAbortedError, StallError
from distrun.runtime.backends.base import Backend
from distrun.runtime.gpu.driver import Driver
from distrun.runtime.gpu.nccl.library import AnyCommunicator, Communicator, NcclError, SingleRankCommunicator, unique_id
from distrun.runtime.operations.timeouts import FOREVER, Timeouts, WaitTimer

PEER_CHECK_INTERVAL = 0.05
"""Seconds between two checks that the ranks that NCCL waits for have not failed."""

CLOSE_TIMEOUTS = Timeouts(0.0, 10.0)
"""How long to wait for the end of a communicator."""

_MESSAGE_BYTES = 2048  # size of the message with the unique id: a longer error text is cut off

_SHARED_GPU_ENVIRONMENT = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    # The ranks' kernels wait for each other, so they should all fit on the GPU at the same time.
    "NCCL_MAX_CTAS": "2",
    # NVLink SHARP, where the switch between GPUs forms sums, needs a GPU for each rank.
    "NCCL_NVLS_ENABLE": "0",
}

_T = TypeVar("_T")


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that let NCCL accept several ranks on a GPU, unless the user has set them.

    It must be called before NCCL is used.
    """
    for name, value in _SHARED_GPU_ENVIRONMENT.items():
        environ.setdefault(name, value)


_is_sharing_refused = False
"""Whether NCCL has already read an environment that forbids ranks to share a GPU."""


def can_share_gpus() -> bool:
    """Return whether NCCL, if it is new enough, accepts ranks that share a GPU: it reads its environment once."""
    return not _is_sharing_refused


def _note_environment(environ: Mapping[str, str] = os.environ) -> None:
    global _is_sharing_refused
    _is_sharing_refused |= environ.get("NCCL_MULTI_RANK_GPU_ENABLE") != "1"


class Communicators:
    """The communicators of one rank. One thread calls `get`. Another may `check` and `abort`, even while `get`
    waits."""

    def __init__(
        self,
        driver: Driver,
        host_backends: Mapping[int, Backend],
        timeouts: Timeouts = FOREVER,
        peer_failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        """
        Args:
            host_backends: broadcast the unique ids, by process set.
            timeouts: how long to wait for other ranks.
            peer_failure: returns why a rank is gone, or None.
        """
        self._driver = driver
        self._host_backends = host_backends
        self._timeouts = timeouts
        self._peer_failure = peer_failure
        self._communicators: dict[tuple[int, str], AnyCommunicator] = {}
        self._lock = threading.Lock()
        self._aborted: str | None = None
        self._helper: _HelperThread | None = None

    def get(self, process_set: int = 0, shares_gpus: bool = False, queue: str = "") -> AnyCommunicator:
        """Return the communicator of a process set. Its ranks call this at the same place in their order of operations.

        Args:
            shares_gpus: whether some of them share a GPU.
            queue: the name of the queue whose communicator is wanted, or "" for that of all negotiated operations.

        Raises:
            NcclError: NCCL failed. The other ranks may be waiting in NCCL, and must be notified.
            JobAbortedError: a rank is gone.
            StallError: a rank did not call this within the stall timeout.
        """
        known = self._communicators.get((process_set, queue))
        if known is not None:
            return known
        reason = self.aborted
        if reason is not None:
            raise JobAbortedError(reason)
        host_backend = self._host_backends[process_set]
        if shares_gpus and host_backend.size > 1:
            set_environment()
        made = SingleRankCommunicator(self._driver) if host_backend.size == 1 else self._make(host_backend)
        with self._lock:
            reason = self.aborted
            if reason is None:
                self._communicators[process_set, queue] = made
                return made
        made.abort(reason)
        raise JobAbortedError(reason)

    def _make(self, host_backend: Backend) -> Communicator:
        nccl, size, rank = self._driver.cupy.cuda.nccl, host_backend.size, host_backend.rank
        group_id = self._shared_unique_id(host_backend)
        _note_environment()

        def make() -> Communicator:
            with self._driver.use:
                return Communicator(nccl, size, group_id, rank)

        def failure() -> str | None:
            return self.aborted or self._peer_failure()

        def dispose(late: Communicator) -> None:
            with self._driver.use:
                late.abort()

        self._helper = helper = self._helper or _HelperThread()
        what = f"NCCL on rank {rank} connects the GPUs of {size} ranks (NCCL_DEBUG=INFO shows how far it is)"
        return _run_watched(helper, make, dispose, what, self._timeouts, failure)

    def _shared_unique_id(self, host_backend: Backend) -> bytes:
        """Return the group's unique id, which its first rank makes and broadcasts.

        If the first rank fails to make it, its error is raised on all ranks.
        """
        error, text = False, b""
        if host_backend.rank == 0:
            try:
                text = unique_id(self._driver.cupy.cuda.nccl)
            except NcclError as reason:
                error, text = True, str(reason).encode()[:_MESSAGE_BYTES]
        head, body = np.array([error, len(text)], np.int64), np.zeros(_MESSAGE_BYTES, np.uint8)
        body[: len(text)] = np.frombuffer(text, np.uint8)
        message = np.concatenate([head.view(np.uint8), body])
        host_backend.broadcast(message, 0, "the exchange of NCCL's unique id")
        error, length = message[: head.nbytes].view(np.int64).tolist()
        text = message[head.nbytes : head.nbytes + length].tobytes()
        if error:
            raise NcclError(text.decode(errors="replace"))
        return text

    @property
    def aborted(self) -> str | None:
        """Why the communicators cannot be used, or None. Another thread may set it at any time."""
        return self._aborted

    def check(self) -> None:
        """Check all communicators for errors of queued operations. Raises `NcclError`."""
        for communicator in self._all():
            communicator.check()

    def abort(self, reason: str = "the communicators were aborted") -> None:
        """End queued operations and calls that wait for other ranks. Later calls raise errors with this `reason`."""
        with self._lock:
            if self._aborted is None:
                self._aborted = reason
        self._end(self._all(), lambda communicator: communicator.abort(reason), CLOSE_TIMEOUTS, lambda: None)

    def remove(self, process_set: int, timeouts: Timeouts | None = None) -> None:
        """Close the communicators of a process set. Its ranks call this together. It waits as `close` does."""
        with self._lock:
            keys = [key for key in self._communicators if key[0] == process_set]
            communicators = [self._communicators.pop(key) for key in keys]
        self._close(communicators, timeouts)

    def close(self, timeouts: Timeouts | None = None) -> None:
        """Close all communicators, unless they have been aborted.

        The ranks of a host wait for each other in NCCL, so the wait ends if a rank is gone or the timeout has passed.
        """
        if self._aborted is None:
            self._aborted = "the communicators were closed"
            self._close(self._all(), timeouts)
        self._communicators.clear()
        if self._helper is not None:
            self._helper.end()

    def _all(self) -> list[AnyCommunicator]:
        return list(self._communicators.values())

    def _close(self, communicators: Sequence[AnyCommunicator], timeouts: Timeouts | None) -> None:
        self._end(communicators, lambda each: each.close(), timeouts or CLOSE_TIMEOUTS, self._peer_failure)

    def _end(
        self,
        communicators: Sequence[AnyCommunicator],
        end: Callable[[AnyCommunicator], None],
        timeouts: Timeouts,
        failure: Callable[[], str | None],
    ) -> None:
        """Call `end` for all `communicators`. NCCL waits until all CUDA graphs that contain its calls are gone."""

        def work() -> None:
            # NCCL restores the thread's current GPU afterwards. Without this, it would be the default one, where NCCL
            # would create a context.
            with self._driver.use:
                for communicator in communicators:
                    end(communicator)

        if communicators and self._helper is not None:
            with suppress(JobAbortedError, StallError):  # what they hold is freed when the process ends
                _run_watched(self._helper, work, lambda _: None, "NCCL is closed", timeouts, failure)


class _HelperThread:
    """A thread for NCCL's calls that wait for other ranks and cannot be interrupted. It runs them one after the other.

    It is kept to close what it has made: since Python 3.12, no thread can be started while the interpreter exits. It is
    a daemon thread, so that a call that never returns does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="distrun-nccl", daemon=True).start()

    def start(self, work: Callable[[], None]) -> None:
        """Queue `work`, which must not raise."""
        self._work.put(work)

    def end(self) -> None:
        """End the thread when it has run everything."""
        self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _run_watched(
    helper: _HelperThread,
    work: Callable[[], _T],
    dispose: Callable[[_T], None],
    what: str,
    timeouts: Timeouts,
    failure: Callable[[], str | None],
) -> _T:
    """Run `work`, which may wait for other ranks and cannot be interrupted, in the helper thread. Return its result.

    Args:
        helper: the thread.
        work: returns the result.
        dispose: releases a result that arrives after the wait has ended.
        what: describes the work in messages.
        timeouts: limit the wait.
        failure: returns why the wait must end, or None.

    Raises:
        JobAbortedError: `failure` returned a reason. The thread continues by itself.
        StallError: the timeout has passed. The thread continues by itself.
    """
    results: list[_T] = []
    errors: list[BaseException] = []
    is_done = threading.Event()
    lock = threading.Lock()
    is_abandoned = False

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            errors.append(error)
        else:
            with lock:
                is_late = is_abandoned
                results.append(result)
            if is_late:
                dispose(result)
        is_done.set()

    helper.start(run)
    wait_timer = WaitTimer(timeouts, lambda: what, None)
    try:
        while not is_done.wait(PEER_CHECK_INTERVAL):
            reason = failure()
            if reason is not None:
                raise JobAbortedError(f"{what}: {reason}")
            wait_timer.look(time.monotonic())
    except BaseException:
        with lock:
            is_abandoned = True
        if results:  # the result has arrived since the last check
            dispose(results[0])
        raise
    if errors:
        try:
            raise errors[0]
        finally:
            errors.clear()  # otherwise the error and this frame would keep each other and all arguments alive
    return results[0]
