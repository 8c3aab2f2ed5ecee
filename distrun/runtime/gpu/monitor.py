"""The GPU monitor: gives the engine of a rank its GPU, and watches what is in flight there."""

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
"""Seconds between two checks of what is in flight."""
DRAIN_TIMEOUT = 1.0
"""Seconds in which what is in flight should end when the script has failed."""


class GpuMonitor:
    """The engine's view of this rank's GPU. The `Gpu` is made on first use: a rank with arrays in host memory only
    never touches CUDA."""

    def __init__(
        self,
        config: GpuConfig | None,
        groups: Groups,
        peer_failure: Callable[[], str | None] = lambda: None,
        alert: Callable[[], None] = lambda: None,
        unreported_error: UnreportedError | None = None,
    ) -> None:
        """
        Args:
            config: None on a rank that is bound to no GPU.
            groups: move arrays between the ranks' host memories.
            peer_failure: returns which rank is gone, or None; called by any thread.
            alert: called when there is something to check and nothing was before.
            unreported_error: where lost results are noted until a call has raised that.
        """
        self._config = config
        self._groups = groups
        self._peer_failure = peer_failure
        self._alert = alert
        self._lock = threading.Lock()
        self._gpu: Gpu | None = None
        self._is_capture_relaxed = False
        self.trouble: str | None = None
        """Why nothing can be completed on the GPU any more."""
        self._unreported_error = unreported_error or UnreportedError()

    def gpu(self) -> Gpu:
        """Return the GPU, made by the first call.

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
        from distrun.runtime.gpu.gpu import Gpu  # only here: ranks without GPU tensors need none of it

        return Gpu(config, self._groups, self._peer_failure, self._alert)

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to check."""
        return self._gpu is not None and self._gpu.is_busy

    def check(self) -> str | None:
        """Check what is in flight, and abort it if it cannot end. For the engine's own thread.

        Returns:
            Why nothing can be completed any more, or None.
        """
        if self._gpu is None or self.trouble is not None:
            return self.trouble
        if not self._is_capture_relaxed:
            self._is_capture_relaxed = True
            self._gpu.driver.relax_capture()
        return self._check(self._gpu)

    def check_from_waiter(self) -> None:
        """Check from another thread than the engine's own, which may be stuck in NCCL, waiting for other ranks."""
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
        """End what runs on the device."""
        if self._gpu is not None and self.trouble is None:
            # Both are set before the abort: it frees a thread that waits for the device, which must find the reason at
            # once.
            self.trouble, lost = reason, _lost(reason)
            self._unreported_error.note(lost)
            if not self._gpu.abort(reason):
                self._unreported_error.retract(lost)

    def close(self, is_hurried: bool = False) -> None:
        """Wait for what is in flight, for a short time only if nobody will need it, and release the GPU."""
        if self._gpu is not None:
            reason = self._gpu.close(DRAIN_TIMEOUT) if is_hurried else self._gpu.close()
            if reason is not None:
                self._unreported_error.note(_lost(reason))
            self._gpu = None


def _lost(reason: str) -> str:
    return f"results of operations on the GPU are lost: {reason}"
