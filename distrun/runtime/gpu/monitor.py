"""The GPU monitor: provides the engine with this rank's GPU, and watches the operations in flight there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from distrun.errors import CollectiveError, UsageError
from distrun.runtime.backends.groups import Groups
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.operations.unreported import UnreportedError

if TYPE_CHECKING:
    from distrun.runtime.gpu.gpu import Gpu

log = logging.getLogger("distrun")

CHECK_INTERVAL = 0.1
"""Seconds between two checks of operations in flight."""
SHORTEST_INTERVAL = 0.01
"""Seconds after a check in which the next one is left out: where the engine has much to do, it asks all the time."""
DRAIN_TIMEOUT = 1.0
"""Seconds that operations in flight have to end after the script has failed."""


class GpuMonitor:
    """The engine's view of this rank's GPU.

    The `Gpu` is made on first use, so a rank that only has arrays in host memory never initialises CUDA.
    """

    def __init__(
        self,
        config: GpuConfig | None,
        groups: Groups,
        peer_failure: Callable[[], str | None] = lambda: None,
        alert: Callable[[], None] = lambda: None,
        unreported_error: UnreportedError | None = None,
        departure_of: Callable[[int], str | None] = lambda rank: None,
    ) -> None:
        """
        Args:
            config: None on a rank without a GPU.
            groups: move arrays between the ranks' host memories.
            peer_failure: returns a sentence about a rank that is gone, or None. Any thread may call it.
            alert: called when there is something to check and there was nothing before.
            unreported_error: records that results are lost until a call has raised it.
            departure_of: returns a sentence if a rank has left in an orderly way, or None. Any thread may call it.
        """
        self._config = config
        self._groups = groups
        self._peer_failure = peer_failure
        self._alert = alert
        self._departure_of = departure_of
        self._lock = threading.Lock()
        self._gpu: Gpu | None = None
        self._is_capture_relaxed = False
        self._next_check = 0.0
        self.trouble: str | None = None
        """Why no operation on the GPU can complete, or None."""
        self._unreported_error = unreported_error or UnreportedError()

    def gpu(self) -> Gpu:
        """Return the GPU, which the first call makes.

        Raises:
            UsageError: this rank has no GPU, or it cannot be used.
        """
        if self._gpu is None:
            if self._config is None:
                raise UsageError(
                    "a tensor on a GPU cannot travel: this rank was bound to the CPU, because no GPU was visible when "
                    "distrun.init() was called (CUDA_VISIBLE_DEVICES, the driver); see `distrun doctor`"
                )
            with self._lock:
                self._gpu = self._gpu or self._make(self._config)
        return self._gpu

    def _make(self, config: GpuConfig) -> Gpu:
        from distrun.runtime.gpu.gpu import Gpu  # imported here, since ranks without GPU tensors do not need it

        return Gpu(config, self._groups, self._peer_failure, self._alert, self._departure_of)

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to check."""
        return self._gpu is not None and self._gpu.is_busy

    def check(self) -> str | None:
        """Check the operations in flight, unless that was just done, and abort them if they cannot end.

        The engine's own thread calls it.

        Returns:
            Why no operation can complete, or None.
        """
        if self._gpu is None or self.trouble is not None:
            return self.trouble
        if not self._is_capture_relaxed:
            self._is_capture_relaxed = True
            self._gpu.driver.relax_capture()
        if time.monotonic() < self._next_check:
            return None
        reason = self._check(self._gpu)
        self._next_check = time.monotonic() + SHORTEST_INTERVAL
        return reason

    def check_from_waiter(self) -> None:
        """Check in another thread than the engine's own, which may be blocked in NCCL, waiting for other ranks."""
        if self._gpu is not None and self.trouble is None:
            with self._gpu.driver.relaxed_capture():
                self._check(self._gpu)

    def _check(self, gpu: Gpu) -> str | None:
        reason = self._peer_failure()
        try:
            if reason is None:
                gpu.check(time.monotonic())
        except CollectiveError as error:
            reason = str(error)
        if reason is not None:
            # Logged as well, because the script may never ask for the results.
            log.error("operations on the GPU are given up: %s", reason)
            self.abort(reason)
        return reason

    def abort(self, reason: str) -> None:
        """Abort all operations on the device, and record `reason`."""
        if self._gpu is not None and self.trouble is None:
            # Both are set before the abort, which releases threads that wait for the device: they must find the reason.
            self.trouble, lost = reason, _lost(reason)
            self._unreported_error.note(lost)
            if not self._gpu.abort(reason):
                self._unreported_error.retract(lost)

    def close(self, is_hurried: bool = False) -> None:
        """Wait for operations in flight, and release the GPU. If `is_hurried`, wait only for a short time."""
        if self._gpu is not None:
            reason = self._gpu.close(DRAIN_TIMEOUT) if is_hurried else self._gpu.close()
            if reason is not None:
                self._unreported_error.note(_lost(reason))
            self._gpu = None


def _lost(reason: str) -> str:
    return f"results of operations on the GPU are lost: {reason}"
