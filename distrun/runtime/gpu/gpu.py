"""This rank's GPU as the engine sees it: it carries out operations on GPU buffers, which the engine has put in order.

They are queued on a stream of their own. That stream waits for the event behind each operation's inputs, and whoever waits for
an operation makes its own stream wait for the event behind it: the host waits for neither. In a world of one, operations are
queued on the stream they come from.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from distrun.errors import CollectiveError, JobAbortedError, UsageError
from distrun.runtime.backends.base import Backend
from distrun.runtime.gpu import transport_choice
from distrun.runtime.gpu.buffers import DeviceBuffer
from distrun.runtime.gpu.communicators import Communicators
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.gpu.driver import Driver, Event
from distrun.runtime.gpu.handles import DeviceHandle
from distrun.runtime.gpu.in_flight import InFlight, InFlightOperation
from distrun.runtime.gpu.nccl_backend import NcclBackend, takes
from distrun.runtime.gpu.packing import Packer
from distrun.runtime.gpu.staging import StagedBackend
from distrun.runtime.operations.handle import describe
from distrun.runtime.operations.timeouts import Timeouts, WaitTimer

log = logging.getLogger("distrun")

DRAIN_TIMEOUT = 10.0
"""Seconds that `shutdown` waits for operations in flight while none of them ends."""

RECORDED = Timeouts(0.0, 1.0)
"""How long the end of a communicator is waited for whose calls are in CUDA graphs, which may live as long as the process."""


class Gpu:
    """See the module's text. One thread at a time performs; another one may look, abort and close."""

    def __init__(
        self, setting: GpuConfig, host: Backend, trouble: Callable[[], str | None], alert: Callable[[], None]
    ) -> None:
        """
        Args:
            host: carries arrays between the ranks' memories; used in the agreed order, from within `perform`.
            trouble: why a rank will not come any more, if that is known.
            alert: called when something is in flight and nothing was before.

        Raises:
            UsageError: cupy is missing, or CUDA does not have the GPU.
        """
        self.driver = Driver(setting.index)
        self.packer = Packer(self.driver)
        self._config = setting
        self._host = host
        self._trouble = trouble
        self._alert = alert
        self._own_stream = self.driver.new_stream() if host.size > 1 else None
        self._in_flight = InFlight(self.driver.is_done, setting.timeouts)
        self._communicators: Communicators | None = None
        self._nccl: NcclBackend | None = None
        self._staged: StagedBackend | None = None
        self._wait_timer: WaitTimer | None = (
            None  # while an operation is being queued, which NCCL may let wait for other ranks
        )
        self._is_recorded = False  # whether a CUDA graph may carry out operations without our knowledge

    # Carrying out ----------------------------------------------------------------------------------------------------

    def execute(self, handles: Sequence[DeviceHandle]) -> None:
        """Queue `handles`, all of one kind and, if there are several, of one fusion key; fills in their outputs.

        Raises:
            UsageError: it cannot be done; all ranks find that out together.
            CollectiveError: it failed, and nothing can be completed any more.
        """
        what = describe(handles)
        try:
            self._execute(handles, what)
        except (CollectiveError, UsageError):
            raise
        except Exception as error:  # of the framework, say, from which memory for a result is asked
            rank = self._host.rank
            raise CollectiveError(
                f"{what} failed on the GPU of rank {rank}: {type(error).__name__}: {error}"
            ) from error

    def _execute(self, handles: Sequence[DeviceHandle], what: str) -> None:
        driver = self.driver
        with driver.use():
            stream = handles[0].stream if self._own_stream is None else self._own_stream.ptr
            for handle in handles:
                driver.wait(stream, handle.ready)
            carrier = self._carrier(handles[0], stream)
            is_recorded = driver.is_capturing(stream)
            with self._watched(what, carrier):
                carrier.execute(handles, self._room, what)
                finished = driver.record(stream)
                for handle in handles:
                    handle.finished = finished
                if is_recorded:
                    self._is_recorded = True
                elif self._own_stream is not None:
                    self._note(what, handles, finished)

    @contextmanager
    def _watched(self, what: str, carrier: NcclBackend | StagedBackend) -> Iterator[None]:
        """Have what is being queued looked after: NCCL connects GPUs when they first need it, and waits for all ranks."""
        is_first = not self.is_busy
        if carrier is self._nccl:
            self._wait_timer = WaitTimer(
                self._config.timeouts, lambda: f"{what}: NCCL does not come to an end of queueing it", None
            )
            if is_first:
                self._alert()
        try:
            yield
        finally:
            self._wait_timer = None
        if carrier is not self._nccl:  # what was in flight before may have landed meanwhile, and nobody looks any more
            self._alert()

    def _note(self, what: str, handles: Sequence[DeviceHandle], finished: Event) -> None:
        kept = [owner for handle in handles for owner in handle.kept]
        operation = InFlightOperation(what, [handle.ready for handle in handles], finished, handles, kept)
        self._in_flight.add(operation)
        for handle in handles:
            handle.operation = operation

    def _carrier(self, handle: DeviceHandle, stream: int) -> NcclBackend | StagedBackend:
        if self._staged is None:
            self._prepare(stream)
        carrier = self._nccl if self._nccl is not None and takes(handle.request) else self._staged
        assert carrier is not None
        carrier.stream = stream
        return carrier

    def _prepare(self, stream: int) -> None:
        """Agree with the other ranks on how to go about it; they all come here with their first operation."""
        setting = self._config
        report = transport_choice.report(setting.hostname, self.driver.bus_id, setting.may_share)
        chosen = transport_choice.agree(report, self._host)
        if chosen.kind == transport_choice.NCCL:
            self._communicators = Communicators(self.driver, self._host, setting.timeouts, self._trouble, chosen.shares)
            self._nccl = NcclBackend(
                self.driver, self._communicators.get(0), self.packer, stream, self._host, setting.hosts
            )
        elif self._host.rank == 0:
            log.warning("tensors on GPUs travel through the hosts' memory: %s", chosen.reason)
        self._staged = StagedBackend(self.driver, stream, self._host)

    def _room(self, handle: DeviceHandle, count: int, dtype: np.dtype[Any]) -> DeviceBuffer:
        """Memory for a result, from the arena and for the stream of whoever asked for it, which `stream` may write at once."""
        buffer = handle.arena.empty(count, dtype, handle.stream)
        if self._own_stream is not None:  # what had the memory before may still be at work on that stream
            self.driver.wait(self._own_stream.ptr, self.driver.record(handle.stream))
        return buffer

    # Looking after ---------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to look after."""
        return bool(self._in_flight) or self._is_recorded or self._wait_timer is not None

    def look(self, now: float) -> None:
        """See whether what is in flight ends, in time and well.

        Raises:
            CollectiveError: it will not; everything should be given up.
        """
        if self._communicators is not None:
            self._communicators.check()
        wait_timer = self._wait_timer
        if wait_timer is not None:
            wait_timer.look(now)
        self._in_flight.look(now)

    def abort(self, reason: str) -> bool:
        """Nothing can be completed any more: end what runs on the device, so that nobody waits for it.

        Returns whether anything was under way, whose results are lost.
        """
        if self._communicators is not None:
            self._communicators.abort(reason)
        lost = self._in_flight.take_all()
        for operation in lost:
            for handle in operation.kept_alive:
                handle.error = JobAbortedError(reason)
        was_recorded, self._is_recorded = self._is_recorded, False
        return bool(lost) or was_recorded

    def close(self, timeouts: float = DRAIN_TIMEOUT) -> str | None:
        """Let what is in flight end, and let go of everything.

        Args:
            patience: seconds in which nothing ends, after which it is given up.

        Returns:
            Why results are lost, if they are.
        """
        reason = self._drain(timeouts)
        if reason is not None:
            self.abort(reason)
        elif self._staged is not None:
            with suppress(CollectiveError):  # the device has failed, which has been told
                self._staged.close()
        if self._communicators is not None:
            self._communicators.close(RECORDED if self._is_recorded else None)
        self._communicators, self._nccl, self._staged = None, None, None
        return reason

    def _drain(self, timeouts: float) -> str | None:
        """Wait until nothing is in flight; why that will not be, if it will not."""
        left, deadline = len(self._in_flight), time.monotonic() + timeouts
        while self._in_flight:
            reason = self._trouble()
            if reason is not None:
                return reason
            now = time.monotonic()
            try:
                self.look(now)
            except CollectiveError as error:
                return str(error)
            if len(self._in_flight) < left:
                left, deadline = len(self._in_flight), now + timeouts
            elif now > deadline:
                return f"distrun.shutdown() was called, and operations on the GPU have not ended for {timeouts:g} s"
            time.sleep(0.001)  # nothing tells the host that the device has passed an event, unless it blocks for it
        return None
