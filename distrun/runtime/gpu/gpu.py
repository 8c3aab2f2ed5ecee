"""This rank's GPU: executes operations on GPU buffers, in the order that the ranks have agreed on.

Operations are queued on a communication stream. It waits for the event after each operation's inputs. The stream of the
thread that waits for an operation waits for the event after the operation. The host waits for neither. In a world of
one, operations are queued on the stream where they were submitted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from operator import attrgetter
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
from distrun.runtime.gpu.nccl.direct_queue import DirectQueue
from distrun.runtime.gpu.nccl.reduction import is_supported
from distrun.runtime.gpu.nccl_backend import NcclBackend
from distrun.runtime.gpu.packing import Packer
from distrun.runtime.gpu.staging import StagedBackend
from distrun.runtime.operations.handle import describe, describe_request
from distrun.runtime.operations.timeouts import Timeouts, WaitTimer

log = logging.getLogger("distrun")

SHUTDOWN_DRAIN_TIMEOUT = 10.0
"""Seconds without the end of any operation in flight after which `shutdown` stops waiting for them."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 2e-5, 1e-3  # seconds between two checks of the device

_ABORT_TIMEOUT = 1.0
"""Seconds that the device has to end aborted operations."""
_never_ended: list[InFlightOperation] = []
_ready_of, _kept_alive_of = attrgetter("ready"), attrgetter("kept_alive")

CAPTURED_CLOSE_TIMEOUTS = Timeouts(0.0, 1.0)
"""How long to wait for the end of a communicator that CUDA graphs use, since these may exist until the process ends."""


class Gpu:
    """One rank's GPU and its operations in flight. One thread at a time executes. Another may check, abort and
    close."""

    def __init__(
        self,
        config: GpuConfig,
        groups: Groups,
        peer_failure: Callable[[], str | None],
        alert: Callable[[], None],
        departure_of: Callable[[int], str | None],
    ) -> None:
        """
        Args:
            groups: move arrays between the ranks' host memories. Only `execute` uses them, in the agreed order.
            peer_failure: returns why a rank is gone, or None.
            alert: called when an operation is in flight and none was before.
            departure_of: returns a sentence if a rank has left, or None.

        Raises:
            UsageError: cupy is missing, or CUDA does not have the GPU.
        """
        if config.is_shared:
            set_environment()  # now, since a process set without shared GPUs may use NCCL first
        self.driver = Driver(config.index)
        self.packer = Packer(self.driver)
        self._config = config
        self.is_elastic = config.is_elastic
        self._groups = groups
        self._host_backend = groups.backends[WORLD]
        self._peer_failure = peer_failure
        self._alert = alert
        self._own_stream = self.driver.new_stream() if self._host_backend.size > 1 else None
        self._own_pointer: int | None = None if self._own_stream is None else self._own_stream.ptr
        # Not a method of this object: memory is to be freed without a garbage collection.
        self._in_flight = InFlight(
            self.driver.is_done, config.timeouts, partial(_departure, groups.ranks, departure_of)
        )
        self._communicators = Communicators(self.driver, groups.backends, config.timeouts, peer_failure)
        self._fusion = FusionMemory(self.driver)
        # By process set. None if NCCL cannot be used.
        self._nccl: dict[int, NcclBackend | None] = {}
        self._staged = StagedBackend(self.driver, 0, groups)
        groups.before_removal.append(self._remove)
        # The operations that NCCL is queueing, since it may wait for other ranks there, by stream, with the number of
        # this turn. And the number and the timer of the latest turn that was checked.
        self._queueing: dict[int, tuple[int, Sequence[DeviceHandle]]] = {}
        self._timed: dict[int, tuple[int, WaitTimer]] = {}
        self._turns = count()
        # Whether a CUDA graph contains operations. It executes them at each replay without a call of this class.
        self._is_captured = False
        self._given_up: list[InFlightOperation] = []

    # Execution -------------------------------------------------------------------------------------------------------

    def execute(self, handles: Sequence[DeviceHandle]) -> None:
        """Queue `handles`, all of one kind and, if there are several, of one fusion key, and set their outputs.

        Raises:
            UsageError: the operation is impossible. It is raised on all ranks.
            CollectiveError: the operation failed, and no other can complete.
        """
        try:
            with self.driver.use:
                stream = handles[0].stream if self._own_pointer is None else self._own_pointer
                backend = self._backend_for(handles[0], stream)
                self._queue(handles, backend, stream)
                # Staging waits for the device. Operations that were in flight before may have ended in the meantime,
                # which ends the checks, so they must start again.
                if backend is self._staged:
                    self._alert()
                for handle in handles:
                    if handle.opens_queue:
                        handle.given = self._open_queue(handle)
        except (CollectiveError, UsageError):
            raise
        except Exception as error:  # for example of the framework, which allocates the results
            raise self._failed(handles, error) from error

    def _failed(self, handles: Sequence[DeviceHandle], error: Exception) -> CollectiveError:
        rank = self._host_backend.rank
        return CollectiveError(f"{describe(handles)} failed on the GPU of rank {rank}: {type(error).__name__}: {error}")

    def _queue(
        self,
        handles: Sequence[DeviceHandle],
        backend: NcclBackend | StagedBackend,
        stream: int,
        is_everywhere: bool = True,
    ) -> None:
        driver, own = self.driver, self._own_pointer
        ready = list(filter(None, map(_ready_of, handles)))
        for event in ready:
            driver.wait(stream, event)
        is_captured = driver.is_capturing(stream)
        if own is not None and backend is not self._staged:
            is_first, self._queueing[stream] = not self.is_busy, (next(self._turns), handles)
            if is_first:
                self._alert()
        try:
            backend.execute(handles, self._allocate)
            finished = driver.record(stream)
            for handle in handles:
                handle.finished = finished
            if is_captured:
                self._is_captured = True
            elif own is not None:
                self._note_in_flight(handles, ready, finished, is_everywhere)
        finally:
            self._queueing.pop(stream, None)  # only now, so that checks do not end in between

    def _note_in_flight(
        self, handles: Sequence[DeviceHandle], ready: Sequence[Event], finished: Event, is_everywhere: bool
    ) -> None:
        name = partial(describe_request, handles[0].request, handles[0].key, len(handles))
        process_set = handles[0].request.process_set
        kept_alive = list(map(_kept_alive_of, handles))
        operation = InFlightOperation(name, ready, finished, handles, kept_alive, is_everywhere, process_set)
        self._in_flight.operations.append(operation)
        for handle in handles:
            handle.operation = operation

    def record_inputs(self, stream: int) -> Event | None:
        """Return the event after the work now queued on `stream`, which an operation submitted there must wait for.

        None in a world of one, where it is queued on that stream.
        """
        if self._own_pointer is None:
            return None
        with self.driver.use:
            return self.driver.record(stream)

    def join(self, stream: int, submitted_on: int, finished: Event) -> None:
        """Make work that is queued on `stream` later start after `finished`, the event after an operation."""
        if stream != submitted_on or self._own_pointer is not None:
            with self.driver.use:
                self.driver.wait(stream, finished)

    def _backend_for(self, handle: DeviceHandle, stream: int) -> NcclBackend | StagedBackend:
        request = handle.request
        if handle.taking_part:  # ranks that have joined take part with arrays in host memory: see `stand_in`
            self._staged.stream = stream
            return self._staged
        if request.process_set not in self._nccl:
            self._nccl[request.process_set] = self._make_backend(request.process_set, stream)
        nccl = self._nccl[request.process_set]
        backend = nccl if nccl is not None and is_supported(request) else self._staged
        backend.stream = stream
        return backend

    def _make_backend(self, process_set: int, stream: int) -> NcclBackend | None:
        """Choose the transport together with the set's other ranks, which all call this in their first operation."""
        config, host_backend, ranks = self._config, self._groups.backends[process_set], self._groups.ranks[process_set]
        where = config.hostname, self.driver.bus_id, self.driver.uuid
        info = transport_choice.gpu_info(*where, config.may_share, can_share_gpus(), config.transport)
        choice = transport_choice.agree(info, host_backend, ranks)
        if choice.kind == transport_choice.NCCL:
            communicator = self._communicators.get(process_set, choice.shares_gpus)
            return NcclBackend(self._fusion, communicator, self.packer, stream, host_backend, ranks)
        if host_backend.rank == 0:
            log.warning("tensors on GPUs travel through the hosts' memory: %s", choice.reason)
        return None

    def _open_queue(self, handle: DeviceHandle) -> DirectQueue | None:
        """Return a queue for the ranks that `handle` reduces over, or None if some have joined or do not use NCCL.

        All call this. The operation is executed there once more, which connects the GPUs.
        """
        process_set = handle.request.process_set
        if self._own_pointer is None or handle.taking_part or self._nccl.get(process_set) is None:
            return None
        communicator = self._communicators.get(process_set, queue=str(handle.request.name))
        stream, groups = self.driver.new_stream(), self._groups
        host_backend, ranks = groups.backends[process_set], groups.ranks[process_set]
        fusion = FusionMemory(self.driver)
        backend = NcclBackend(fusion, communicator, self.packer, stream.ptr, host_backend, ranks)
        handle.ready = handle.finished
        self._queue([handle], backend, stream.ptr)
        return DirectQueue(self, backend, stream)

    def queue_directly(self, handle: DeviceHandle, backend: NcclBackend) -> None:
        """Queue an operation that was not negotiated, for a `DirectQueue`. Any error fails the job.

        Raises:
            JobAbortedError: the operations on the device have been aborted.
            CollectiveError: the operation failed, and no other can complete.
        """
        reason = self._communicators.aborted
        if reason is not None:
            raise JobAbortedError(reason)
        try:
            with self.driver.use:
                self._queue([handle], backend, backend.stream, is_everywhere=False)
        except Exception as error:
            failure = error if isinstance(error, CollectiveError) else self._failed([handle], error)
            handle.engine.fail(str(failure))
            raise failure from error

    def _remove(self, process_set: int) -> None:
        """Release what a process set has used. All its ranks call this together."""
        if self._nccl.pop(process_set, None) is not None:
            reason = self._drain(float("inf"))
            if reason is not None:
                raise JobAbortedError(reason)
            self._communicators.remove(process_set, CAPTURED_CLOSE_TIMEOUTS if self._is_captured else None)

    def _allocate(self, handle: DeviceHandle, count: int, dtype: np.dtype[Any]) -> DeviceBuffer:
        """Return a new result from the arena of `handle` and for its stream, which the communication stream may
        write."""
        buffer = handle.arena.empty(count, dtype, handle.stream)
        if self._own_pointer is not None:
            # The pool returns memory that is free in the order of the handle's stream: kernels that were queued there
            # may still use it.
            self.driver.wait(self._own_pointer, self.driver.record(handle.stream))
        return buffer

    def await_end(self, handle: DeviceHandle) -> None:
        """In an elastic job, wait until the device has executed the operation of `handle`, or it was aborted.

        In the second case, set `handle.error`. Operations that are captured into a CUDA graph are not waited for.

        Raises:
            CollectiveError: the device has failed.
        """
        with self.driver.use:
            if self.driver.is_capturing(handle.stream):
                return
        finished = handle.finished
        assert finished is not None
        pause = _SHORTEST_PAUSE
        while self._communicators.aborted is None and not self.driver.is_done(finished):
            time.sleep(pause)  # a blocking wait for the event could not be aborted
            pause = min(_LONGEST_PAUSE, 1.2 * pause)
        reason = self._communicators.aborted  # it is set before the abort that lets the device pass the event
        if reason is not None and handle.error is None:
            handle.error = JobAbortedError(reason)

    # Monitoring ------------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to check."""
        return bool(self._in_flight.operations or self._is_captured or self._queueing)

    def check(self, now: float) -> None:
        """Check that operations in flight end in time and without errors.

        Raises:
            CollectiveError: they do not, so everything should be aborted.
        """
        self._communicators.check()
        self._check_queueing(now)
        self._in_flight.check(now)

    def _check_queueing(self, now: float) -> None:
        """Check how long NCCL takes to queue: it connects GPUs on first use, which waits for all ranks."""
        if not self._queueing:
            self._timed.clear()
            return
        queueing = self._queueing.copy()
        timed = {stream: self._timed[stream] for stream in queueing if stream in self._timed}
        for stream, (turn, handles) in queueing.items():
            if stream not in timed or timed[stream][0] != turn:
                what = f"{describe(handles)}: NCCL does not come to an end of queueing it"
                timed[stream] = turn, WaitTimer(self._config.timeouts, partial(str, what), None)
            timed[stream][1].look(now)
        self._timed = timed

    def abort(self, reason: str) -> bool:
        """End all operations on the device, so that no thread waits for them. No operation can complete afterwards.

        Returns:
            Whether operations were in flight. Their results are lost.
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
        """Wait for operations in flight, and release everything.

        Args:
            drain_timeout: seconds without the end of any operation after which the remaining ones are aborted.

        Returns:
            Why results are lost, or None if none are.
        """
        reason = self._drain(drain_timeout)
        if reason is not None:
            self.abort(reason)
        else:
            with suppress(CollectiveError):  # the device has failed, which was reported before
                self._staged.close()
        if self.is_elastic:  # the others may leave one by one, so do not wait for them
            self._communicators.abort("the world was left")
        self._communicators.close(CAPTURED_CLOSE_TIMEOUTS if self._is_captured else None)
        self._nccl.clear()
        self._groups.before_removal.remove(self._remove)
        self._let_go()
        return reason

    def _let_go(self) -> None:
        """Release the memory of aborted operations after the device has ended them.

        Operations that it does not end keep their memory until the process ends.
        """
        deadline = time.monotonic() + _ABORT_TIMEOUT
        with suppress(CollectiveError):  # the device has failed
            while self._given_up:
                if self.driver.is_done(self._given_up[-1].finished):
                    self._given_up.pop().handles = ()  # breaks a reference cycle
                elif time.monotonic() > deadline:
                    break
                else:
                    time.sleep(_LONGEST_PAUSE)
        _never_ended.extend(self._given_up)

    def _drain(self, drain_timeout: float) -> str | None:
        """Wait until no operation is in flight. Return why this will never be the case, or None."""
        operations = self._in_flight.operations
        left, deadline = len(operations), time.monotonic() + drain_timeout
        while operations:
            reason = self._peer_failure()
            if reason is not None:
                return reason
            now = time.monotonic()
            try:
                self.check(now)
            except CollectiveError as error:
                return str(error)
            if len(operations) < left:
                left, deadline = len(operations), now + drain_timeout
            elif now > deadline:
                return (
                    f"distrun.shutdown() was called, and operations on the GPU have not ended for {drain_timeout:g} s"
                )
            # The host is not woken when the device passes an event, unless it blocks for the event, and an abort could
            # not end that.
            time.sleep(0.001)
        return None


def _departure(sets: Mapping[int, Sequence[int]], of: Callable[[int], str | None], process_set: int) -> str | None:
    return next(filter(None, map(of, sets.get(process_set, ()))), None)
