"""This rank's GPU: executes the operations on GPU buffers, in the order in which the ranks have agreed.

Operations are queued on a communication stream. It waits for the event behind each operation's inputs, and the stream
of the thread that waits for an operation waits for the event behind that: the host waits for neither. In a world of
one, operations are queued on the stream from which they were submitted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from distrun.errors import CollectiveError, JobAbortedError, UsageError
from distrun.runtime.backends.groups import WORLD, Groups
from distrun.runtime.gpu import transport_choice
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.gpu.driver import Driver, Event
from distrun.runtime.gpu.fusion_memory import FusionMemory
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.gpu.in_flight import InFlight, InFlightOperation
from distrun.runtime.gpu.nccl.communicators import Communicators, can_share_gpus, set_environment
from distrun.runtime.gpu.nccl.reduction import is_supported
from distrun.runtime.gpu.nccl_backend import NcclBackend
from distrun.runtime.gpu.packing import Packer
from distrun.runtime.gpu.staging import StagedBackend
from distrun.runtime.operations.handle import describe
from distrun.runtime.operations.timeouts import Timeouts, WaitTimer

log = logging.getLogger("distrun")

SHUTDOWN_DRAIN_TIMEOUT = 10.0
"""Seconds that `shutdown` waits for operations in flight while none of them ends."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 2e-5, 1e-3  # seconds between two looks at whether the device is done

_ABORT_TIMEOUT = 1.0
"""Seconds in which the device ends operations that were aborted."""
_never_ended: list[InFlightOperation] = []

CAPTURED_CLOSE_TIMEOUTS = Timeouts(0.0, 1.0)
"""How long to wait for the end of a communicator whose calls CUDA graphs contain, which may live as long as the
process."""


class Gpu:
    """One rank's GPU and what is in flight on it. One thread at a time executes; another may check, abort and close."""

    def __init__(
        self,
        config: GpuConfig,
        groups: Groups,
        peer_failure: Callable[[], str | None],
        alert: Callable[[], None],
    ) -> None:
        """
        Args:
            groups: move arrays between the ranks' host memories; used in the agreed order, from within `execute`.
            peer_failure: returns why a rank will not come any more, or None.
            alert: called when something is in flight and nothing was before.

        Raises:
            UsageError: cupy is missing, or CUDA does not have the GPU.
        """
        if config.is_shared:
            set_environment()  # a process set whose ranks do not share may be the first to use NCCL
        self.driver = Driver(config.index)
        self.packer = Packer(self.driver)
        self._config = config
        self.is_elastic = config.is_elastic
        self._groups = groups
        self._host_backend = groups.backends[WORLD]
        self._peer_failure = peer_failure
        self._alert = alert
        self._own_stream = self.driver.new_stream() if self._host_backend.size > 1 else None
        self._in_flight = InFlight(self.driver.is_done, config.timeouts)
        self._communicators = Communicators(self.driver, groups.backends, config.timeouts, peer_failure)
        self._fusion = FusionMemory(self.driver)
        # By process set; None where NCCL cannot be used.
        self._nccl: dict[int, NcclBackend | None] = {}
        self._staged = StagedBackend(self.driver, 0, groups)
        groups.before_removal.append(self._remove)
        # Set while NCCL queues an operation, in which it may wait for other ranks.
        self._wait_timer: WaitTimer | None = None
        # A CUDA graph that contains operations executes them, when it is replayed, without our knowledge.
        self._is_captured = False
        self._given_up: list[InFlightOperation] = []

    # Execution -------------------------------------------------------------------------------------------------------

    def execute(self, handles: Sequence[DeviceHandle]) -> None:
        """Queue `handles`, all of one kind and, if there are several, of one fusion key, and set their outputs.

        Raises:
            UsageError: the operation is impossible, which all ranks find out together.
            CollectiveError: the operation failed, and nothing can be completed any more.
        """
        what = describe(handles)
        try:
            self._execute(handles, what)
        except (CollectiveError, UsageError):
            raise
        except Exception as error:  # of the framework, say, which allocates the results
            rank = self._host_backend.rank
            raise CollectiveError(
                f"{what} failed on the GPU of rank {rank}: {type(error).__name__}: {error}"
            ) from error

    def _execute(self, handles: Sequence[DeviceHandle], what: str) -> None:
        driver = self.driver
        with driver.use():
            stream = handles[0].stream if self._own_stream is None else self._own_stream.ptr
            for handle in handles:
                driver.wait(stream, handle.ready)
            backend = self._backend_for(handles[0], stream)
            is_captured = driver.is_capturing(stream)
            with self._watched(what, backend):
                backend.execute(handles, self._allocate, what)
                finished = driver.record(stream)
                for handle in handles:
                    handle.finished = finished
                if is_captured:
                    self._is_captured = True
                elif self._own_stream is not None:
                    self._note_in_flight(what, handles, finished)

    @contextmanager
    def _watched(self, what: str, backend: NcclBackend | StagedBackend) -> Iterator[None]:
        """Have the monitor watch the queueing: NCCL connects GPUs when they are first needed, and waits for all ranks
        there."""
        is_first = not self.is_busy
        if backend is not self._staged:
            self._wait_timer = WaitTimer(
                self._config.timeouts, lambda: f"{what}: NCCL does not come to an end of queueing it", None
            )
            if is_first:
                self._alert()
        try:
            yield
        finally:
            self._wait_timer = None
        # Staging has waited for the device. What was in flight before may have ended meanwhile, and with it the checks.
        if backend is self._staged:
            self._alert()

    def _note_in_flight(self, what: str, handles: Sequence[DeviceHandle], finished: Event) -> None:
        kept_alive = [owner for handle in handles for owner in handle.kept_alive]
        operation = InFlightOperation(what, [handle.ready for handle in handles], finished, handles, kept_alive)
        self._in_flight.add(operation)
        for handle in handles:
            handle.operation = operation

    def _backend_for(self, handle: DeviceHandle, stream: int) -> NcclBackend | StagedBackend:
        request = handle.request
        if handle.taking_part:  # the ranks that have joined take part with arrays on their hosts: see `stand_in`
            self._staged.stream = stream
            return self._staged
        if request.process_set not in self._nccl:
            self._nccl[request.process_set] = self._make_backend(request.process_set, stream)
        nccl = self._nccl[request.process_set]
        backend = nccl if nccl is not None and is_supported(request) else self._staged
        backend.stream = stream
        return backend

    def _make_backend(self, process_set: int, stream: int) -> NcclBackend | None:
        """Choose the transport together with the set's other ranks, which all come here with their first operation."""
        config, host_backend, ranks = self._config, self._groups.backends[process_set], self._groups.ranks[process_set]
        info = transport_choice.gpu_info(
            *(config.hostname, self.driver.bus_id, config.may_share, can_share_gpus(), config.transport)
        )
        choice = transport_choice.agree(info, host_backend, ranks)
        if choice.kind == transport_choice.NCCL:
            communicator = self._communicators.get(process_set, choice.shares_gpus)
            return NcclBackend(self._fusion, communicator, self.packer, stream, host_backend, ranks)
        if host_backend.rank == 0:
            log.warning("tensors on GPUs travel through the hosts' memory: %s", choice.reason)
        return None

    def _remove(self, process_set: int) -> None:
        """Release what a process set has used; all its ranks come here together."""
        if self._nccl.pop(process_set, None) is not None:
            reason = self._drain(float("inf"))
            if reason is not None:
                raise JobAbortedError(reason)
            self._communicators.remove(process_set, CAPTURED_CLOSE_TIMEOUTS if self._is_captured else None)

    def _allocate(self, handle: DeviceHandle, count: int, dtype: np.dtype[Any]) -> DeviceBuffer:
        """Allocate a result from the submitter's arena and for its stream; the communication stream may write it at
        once."""
        buffer = handle.arena.empty(count, dtype, handle.stream)
        if self._own_stream is not None:
            # The pool hands out memory that is free in the order of the submitter's stream: kernels that were queued
            # there may still be using it.
            self.driver.wait(self._own_stream.ptr, self.driver.record(handle.stream))
        return buffer

    def await_end(self, handle: DeviceHandle) -> None:
        """In an elastic job: wait until the device has carried out an operation, or it was given up, which
        `handle.error` says then. What is captured into a CUDA graph is not waited for.

        Raises:
            CollectiveError: the device has failed.
        """
        if self.driver.is_capturing(handle.stream):
            return
        finished = handle.finished
        assert finished is not None
        pause = _SHORTEST_PAUSE
        while self._communicators.aborted is None and not self.driver.is_done(finished):
            time.sleep(pause)  # an event that is blocked for could not be given up
            pause = min(_LONGEST_PAUSE, 1.2 * pause)
        reason = self._communicators.aborted  # set before the abort that lets the device pass the event
        if reason is not None and handle.error is None:
            handle.error = JobAbortedError(reason)

    # Monitoring ------------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to check."""
        return bool(self._in_flight) or self._is_captured or self._wait_timer is not None

    def check(self, now: float) -> None:
        """Check that what is in flight ends in time and without errors.

        Raises:
            CollectiveError: it does not; everything should be aborted.
        """
        self._communicators.check()
        wait_timer = self._wait_timer
        if wait_timer is not None:
            wait_timer.look(now)
        self._in_flight.check(now)

    def abort(self, reason: str) -> bool:
        """End what runs on the device, so that nobody waits for it: nothing can be completed any more.

        Returns:
            Whether anything was in flight, whose results are lost.
        """
        self._communicators.abort(reason)
        lost = self._in_flight.take_all()
        for operation in lost:
            for handle in operation.handles:
                handle.error = JobAbortedError(reason)
        self._given_up += lost
        was_captured, self._is_captured = self._is_captured, False
        return bool(lost) or was_captured

    def close(self, drain_timeout: float = SHUTDOWN_DRAIN_TIMEOUT) -> str | None:
        """Wait for what is in flight, and release everything.

        Args:
            drain_timeout: seconds in which no operation ends, after which those that are left are aborted.

        Returns:
            Why results are lost, or None if none are.
        """
        reason = self._drain(drain_timeout)
        if reason is not None:
            self.abort(reason)
        else:
            with suppress(CollectiveError):  # the device has failed, which has been reported
                self._staged.close()
        if self.is_elastic:  # the others may leave one by one: nobody waits for them
            self._communicators.abort("the world was left")
        self._communicators.close(CAPTURED_CLOSE_TIMEOUTS if self._is_captured else None)
        self._nccl.clear()
        self._groups.before_removal.remove(self._remove)
        self._let_go()
        return reason

    def _let_go(self) -> None:
        """Let go of the memory of operations that were given up, when the device has done with them: it ends what NCCL
        has aborted. What it does not end keeps its memory as long as the process lives."""
        deadline = time.monotonic() + _ABORT_TIMEOUT
        with suppress(CollectiveError):  # the device has failed
            while self._given_up:
                if self.driver.is_done(self._given_up[-1].finished):
                    self._given_up.pop().handles = ()  # which refer to it
                elif time.monotonic() > deadline:
                    break
                else:
                    time.sleep(_LONGEST_PAUSE)
        _never_ended.extend(self._given_up)

    def _drain(self, drain_timeout: float) -> str | None:
        """Wait until nothing is in flight; return why that will never be, or None."""
        left, deadline = len(self._in_flight), time.monotonic() + drain_timeout
        while self._in_flight:
            reason = self._peer_failure()
            if reason is not None:
                return reason
            now = time.monotonic()
            try:
                self.check(now)
            except CollectiveError as error:
                return str(error)
            if len(self._in_flight) < left:
                left, deadline = len(self._in_flight), now + drain_timeout
            elif now > deadline:
                return (
                    f"distrun.shutdown() was called, and operations on the GPU have not ended for {drain_timeout:g} s"
                )
            # Nothing wakes the host when the device passes an event, unless it blocks for it, which an abort could not
            # end.
            time.sleep(0.001)
        return None
