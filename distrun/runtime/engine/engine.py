"""The engine: takes operations in any order, agrees on one order with the other ranks, and carries them out.

Whoever waits drives. All communication of a rank is done under one lock, by whichever thread holds it: a thread that waits
for its operation takes the lock and does the work itself, so a synchronous call costs no hand-over to another thread and
back. The engine's own thread drives when operations are under way and nobody here waits for them, and sleeps otherwise. There
is no cycle and no polling: an idle rank costs nothing.

Where every core is kept busy by a rank, work done beside the rank's own only slows both down, and most often the rank will
soon wait for it, and do it then. There the engine's thread is not woken by submitting, but by a neighbour that has waited for
us for a while, and by `poll`.

One turn of the driver: hand the newly submitted operations to the coordinator; if we are the coordinator, let the controller
decide what is ready; carry out what has been decided, in the order in which it was decided; sleep until there is more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from distrun.errors import CollectiveError, JobAbortedError, UsageError
from distrun.runtime.backends.base import Backend
from distrun.runtime.backends.dispatch import execute
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.gpu.monitor import CHECK_INTERVAL, DRAIN_TIMEOUT, GpuMonitor
from distrun.runtime.negotiation.controller import Controller
from distrun.runtime.negotiation.negotiator import Negotiator
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.negotiation.piggyback import Piggyback
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import CPU, title
from distrun.runtime.operations.timeouts import FOREVER
from distrun.runtime.shared_memory.segment import FAILED, LEFT
from distrun.runtime.transport.control_plane import ControlPlane
from distrun.runtime.transport.local_group import LocalGroup
from distrun.tensor_fusion.batching import DEFAULT_THRESHOLD

if TYPE_CHECKING:
    from distrun.runtime.gpu.gpu import Gpu
    from distrun.runtime.gpu.handles import DeviceHandle

LINGER = 0.0002
"""Seconds without a new submission after which the engine's own thread sets to work on small operations."""
FAREWELL = "it called shutdown() or its script ended"
"""Why a rank has left, unless it says more."""
PARTING = 10.0
"""Seconds that `shutdown` gives the engine's own thread to end; in NCCL it may wait for a rank that does not come."""
BIG = 256 << 10
"""Bytes of a tensor for which it sets to work at once."""


class Engine:
    """The communication of one rank of a job with several; see the module's text."""

    def __init__(
        self,
        local_group: LocalGroup,
        backend: Backend,
        controller: Controller | None,
        fusion_threshold: int = DEFAULT_THRESHOLD,
        may_offer: bool = False,
        gpu_config: GpuConfig | None = None,
    ) -> None:
        """`controller` is given on the coordinator and on no other rank; `may_offer` (see `Riders`) is the same on all.
        `gpu_setting` is given on ranks that are bound to a GPU."""
        self.backend = backend
        self._local_group = local_group
        self._rank = local_group.ranks[local_group.own]
        self._is_follower = controller is None
        self._control_plane = ControlPlane(local_group)
        # Whether there are spare cores decides who wakes whom: ranks that saw different affinities could each rely on the
        # other. (And everybody plans the fusion for itself, so everybody must go by the same threshold: rank 0's.)
        shown = local_group.exchange((fusion_threshold, local_group.spare_cores), "init")
        local_group.spare_cores = min(words[1] for words in shown)
        self._network = local_group.network
        # Waiting for another host leaves a core idle, and nobody there can see that we have something for them.
        self._is_forward = local_group.spare_cores > 0 or self._network is not None
        self._is_alarmed = False
        self._pending_operations = PendingOperations(shown[0][0])
        self._pending = self._pending_operations.pending
        self._outbox = self._pending_operations.outbox
        piggyback = Piggyback(backend, may_offer) if isinstance(backend, HierarchicalBackend) else None
        self._negotiator = Negotiator(
            local_group,
            self._control_plane,
            backend.size,
            self._pending_operations,
            controller,
            piggyback,
            self._execute,
            self._complete,
        )
        self._watch = self._negotiator.watch
        self._failure: str | None = None
        self._stopping = False
        self._farewell = FAREWELL
        self._lock = threading.Lock()
        self._is_progressing = False
        self._progress_thread = 0  # the thread that drives
        self._finished = threading.Condition()
        self._waiters = 0
        self._own_service_bell = bell = local_group.service_bells[local_group.own]
        self._gpu_monitor = GpuMonitor(gpu_config, backend, local_group.fallen, bell.ring)
        self._thread = threading.Thread(target=self._serve, name="distrun", daemon=True)
        self._thread.start()

    def gpu(self) -> Gpu:
        """The GPU of this rank; raises `UsageError` if it has none that can be used."""
        self._is_forward = True  # the host's cores wait while GPUs work, so nothing is gained by lying low
        return self._gpu_monitor.gpu()

    # Submitting -----------------------------------------------------------------------------------------------------

    def submit(self, handle: Handle) -> Handle:
        """Start an operation; it makes progress while the caller does other things.

        Raises:
            UsageError: an operation of this name is under way already.
            JobAbortedError: the job has failed or this rank has shut down.
        """
        self._enqueue(handle)
        if self._is_progressing:
            self._local_group.bell.ring()
        elif self._is_forward or self._local_group.is_wanted:
            self._own_service_bell.ring()
        return handle

    def run(self, handle: Handle) -> Handle:
        """Start an operation that the caller will wait for at once."""
        self._enqueue(handle)
        if self._is_progressing:
            self._local_group.bell.ring()
        return handle

    def _enqueue(self, handle: Handle) -> None:
        if self._failure is not None:
            self.error_reported()
            raise JobAbortedError(self._failure)
        self._pending_operations.enter(handle)
        self._sweep()

    def _sweep(self) -> None:
        """If another thread aborted meanwhile, perhaps before it could see the operation just entered, fail it now."""
        if self._failure is not None:
            self._abort(self._failure)

    def ensure_progress(self) -> None:
        """Somebody asks whether an operation is done: see to it that it will be."""
        if not self._is_progressing:
            self._own_service_bell.ring()

    # Waiting and driving --------------------------------------------------------------------------------------------

    def wait(self, handle: Handle) -> None:
        """Return when `handle` is done, driving the engine meanwhile if nobody else does."""
        while not handle.done:
            if self._lock.acquire(blocking=False):
                self._run_progress_loop(handle)
                continue
            is_late = False
            with self._finished:
                self._waiters += 1
                try:
                    # The driver tells when it completes something and when it stops driving. It cannot do so between our
                    # look at the lock and here unnoticed: it takes `_finished` after it has let go of the lock.
                    if not handle.done and self._is_progressing:
                        is_late = not self._finished.wait(1.0)
                finally:
                    self._waiters -= 1
            if is_late and self._progress_thread == self._thread.ident and self._gpu_monitor.is_busy:
                self._gpu_monitor.check_from_waiter()

    def _run_progress_loop(self, handle: Handle | None) -> None:
        self._is_progressing = True
        self._progress_thread = threading.get_ident()
        self._local_group.may_spin = handle is not None
        self._is_alarmed = False
        try:
            self._progress_loop(handle)
        except CollectiveError as error:
            self._abort(str(error))
        except BaseException as error:
            self._abort(f"rank {self._rank} was interrupted while communicating: {type(error).__name__}: {error}")
            raise
        finally:
            self._is_progressing = False
            self._progress_thread = 0
            self._lock.release()
            if self._waiters:
                with self._finished:
                    self._finished.notify_all()
            if handle is not None and (self._is_alarmed or self._has_work()):
                self._own_service_bell.ring()

    def _progress_loop(self, handle: Handle | None) -> None:
        """Make progress until `handle` is done or, given None, until nothing is under way."""
        while True:
            if self._failure is not None:  # whatever was submitted since then cannot complete either
                raise JobAbortedError(self._failure)
            if self._gpu_monitor.trouble is not None:
                raise JobAbortedError(self._gpu_monitor.trouble)
            self._negotiator.progress()
            self._look_abroad()
            if handle is None:
                self._watch.look(time.monotonic())
                self._gpu_monitor.check()
                if self._is_idle():
                    return
            elif handle.done:
                return
            if not self._has_news():
                self._sleep()

    def _is_idle(self) -> bool:
        is_sending = self._network is not None and self._network.is_sending
        return self._stopping or not (self._pending or self._outbox or self._watch.is_busy or is_sending)

    def _look_abroad(self) -> None:
        """Fail when a rank of another host has failed, or has left while something is still to be decided."""
        if self._network is None or not self._network.is_over:
            return
        trouble = self._network.failure
        if trouble is None and self._pending and not self._control_plane.waiting():
            trouble = self._network.departure
        if trouble is not None:
            raise JobAbortedError(f"{self._waiting_for()}: {trouble}" if self._pending else trouble)

    def _has_news(self) -> bool:
        if self._outbox or self._control_plane.waiting() or self._stopping or self._gpu_monitor.trouble is not None:
            return True
        return self._network is not None and self._network.is_over and bool(self._pending or self._network.failure)

    def _sleep(self) -> None:
        now = time.monotonic()
        until = self._watch.next_look(now)
        if self._control_plane.is_stuck:
            self._control_plane.push()
            until = min(until, now + 0.001)
        if self._network is not None and self._network.is_sending:
            until = min(until, now + 0.02)
        if self._gpu_monitor.is_busy:
            until = min(until, now + CHECK_INTERVAL)
        if not self._local_group.wait(
            self._has_news, self._waiting_for, until, FOREVER, is_undecided=self._is_follower
        ):
            self._watch.look(time.monotonic())

    def _waiting_for(self) -> str:
        handles = list(self._pending.values())
        if not handles:
            return "the engine"
        more = f" and {len(handles) - 1} more" if len(handles) > 1 else ""
        request, place = handles[0].request, handles[0].key[1]
        return title(request.kind, request.name, place if isinstance(place, int) else None) + more

    def _serve(self) -> None:
        """The engine's own thread."""
        bell = self._own_service_bell
        sleeper = self._local_group.service_sleeper()
        while not self._stopping:
            bell.arm()
            if not (self._stopping or self._has_work() or (self._is_alarmed and self._can_drive())):
                sleeper.sleep(CHECK_INTERVAL if self._gpu_monitor.is_busy else None)
            bell.disarm()
            if self._gpu_monitor.is_busy and self._gpu_monitor.check() is not None:
                self._local_group.bell.force()  # if somebody drives; else we do, and abort
            if self._network is not None and not self._stopping and self._network.hear_alarms():
                self._is_alarmed = (
                    True  # if somebody drives, and has looked at the messages already, it is ours to look again
                )
            if self._is_forward:
                self._linger()
            if not self._stopping and self._failure is None and self._lock.acquire(blocking=False):
                self._run_progress_loop(None)

    def _has_work(self) -> bool:
        """Whether the engine's thread need not be rung to know that it should drive."""
        if self._is_progressing:
            return False
        if not (self._outbox or self._pending):
            return self._network is not None and self._network.is_sending and self._failure is None
        return self._is_forward or self._local_group.is_wanted

    def _can_drive(self) -> bool:
        return self._failure is None and not self._is_progressing

    def _linger(self) -> None:
        """Let a burst of operations come together before anything is done about them.

        A thread that submits hundreds of them in a row would otherwise be interrupted for the first few, and again for the
        next few. If it then waits for one of them, it drives at once: we do not hold the lock while we linger.
        """
        seen = -1
        while not self._is_progressing and seen != len(self._outbox):
            seen = len(self._outbox)
            if any(array.nbytes >= BIG for handle in tuple(self._outbox) for array in handle.inputs):
                return
            time.sleep(LINGER)

    # Carrying out ---------------------------------------------------------------------------------------------------

    def _execute(self, handles: Sequence[Handle]) -> None:
        try:
            if handles[0].request.device == CPU:
                with np.errstate(all="ignore"):  # overflow and NaN are results, as on any device
                    execute(self.backend, handles)
            else:
                self._gpu_monitor.gpu().execute(cast("Sequence[DeviceHandle]", handles))
        except UsageError as error:  # what the GPUs were asked for cannot be; all ranks have found that out together
            for handle in handles:
                handle.error = error
        except BaseException as error:
            self._pending_operations.put_back(handles)  # for `_abort` to find
            if isinstance(error, CollectiveError):
                raise JobAbortedError(*error.args) from None
            raise
        self._complete(handles)

    def _complete(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            handle.done = True
        self._local_group.served()
        if self._waiters:
            with self._finished:
                self._finished.notify_all()

    # Trouble --------------------------------------------------------------------------------------------------------

    def _abort(self, reason: str) -> None:
        """Nothing can complete any more: every operation under way fails, and so does every later one, on all ranks."""
        self._failure = reason
        if self._stopping:
            self._local_group.announce(LEFT, self._farewell)
        else:
            self._local_group.announce(FAILED, reason)
        handles = self._pending_operations.take_all()
        for handle in handles:
            handle.error = JobAbortedError(reason)
        self._complete(handles)
        if not self._stopping:
            self._gpu_monitor.abort(reason)

    def error_reported(self) -> None:
        """A call raises, so that the caller knows what has gone wrong."""
        self._gpu_monitor.unreported_error = None

    def disown(self) -> None:
        """We are a forked child of the rank that this engine belongs to: nothing of it may be touched."""
        self._failure = "a forked child of a rank is not a rank: call collectives in the rank itself"
        self._local_group.heap.is_ours = False
        if self._network is not None:
            self._network.disown()
        self._lock, self._finished = threading.Lock(), threading.Condition()  # somebody may have held them at the fork
        self._is_progressing = False

    def shutdown(self, farewell: str = FAREWELL) -> str | None:
        """Leave the job: operations under way fail here, and on the others those that need this rank, with `farewell`.

        Those that are queued on the GPU end before, unless something is wrong there. Returns why results are lost that the
        caller takes for good, if there are such.
        """
        self._farewell = farewell
        self._stopping = self._local_group.leaving = True
        self._failure = self._failure or "distrun.shutdown() was called"
        self._own_service_bell.force()
        self._local_group.bell.force()
        if (
            self._progress_thread == threading.get_ident()
        ):  # in a signal handler, which has interrupted the driver: it ends by itself
            self._local_group.announce(LEFT, farewell)
            return None
        is_hurried = farewell != FAREWELL
        self._thread.join(DRAIN_TIMEOUT if is_hurried else PARTING)
        if self._thread.is_alive():
            self._gpu_monitor.abort("distrun.shutdown() was called while an operation was being queued")
            self._thread.join()
        with self._lock:
            self._abort(self._failure)
        self._gpu_monitor.close(is_hurried)
        self.backend.close()
        self._local_group.close()
        return self._gpu_monitor.unreported_error
