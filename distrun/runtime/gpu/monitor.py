"""The station: where the engine of a rank finds its GPU, and looks after what is in flight there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from distrun.errors import CollectiveError, UsageError
from distrun.runtime.backends.base import Backend
from distrun.runtime.gpu.config import GpuConfig

if TYPE_CHECKING:
    from distrun.runtime.gpu.gpu import Gpu

log = logging.getLogger("distrun")

CHECK_INTERVAL = 0.1
"""Seconds between two looks at what is in flight."""
DRAIN_TIMEOUT = 1.0
"""Seconds in which what is in flight should end when the script has failed."""


class GpuMonitor:
    """Makes the `Gpu` when it is first needed: a rank that has only arrays in host memory never touches CUDA."""

    def __init__(
        self,
        setting: GpuConfig | None,
        host: Backend,
        fallen: Callable[[], str | None] = lambda: None,
        alert: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            setting: None on a rank that is bound to no GPU.
            host: carries arrays between the ranks' memories.
            fallen: says which rank is gone, if any is; any thread asks.
            alert: called when there is something to look after and nothing was before.
        """
        self._config = setting
        self._host = host
        self._fallen = fallen
        self._alert = alert
        self._lock = threading.Lock()
        self._gpu: Gpu | None = None
        self._is_relaxed = False
        self.trouble: str | None = None
        """Why nothing can be completed on the GPU any more."""
        self.unreported_error: str | None = None
        """The same, while results have been lost and no call has raised that yet."""

    def gpu(self) -> Gpu:
        """The GPU.

        Raises:
            UsageError: this rank has none, or it cannot be used.
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

    def _make(self, setting: GpuConfig) -> Gpu:
        from distrun.runtime.gpu.gpu import Gpu  # not for ranks without

        return Gpu(setting, self._host, self._fallen, self._alert)

    @property
    def is_busy(self) -> bool:
        """Whether there is anything to look after."""
        return self._gpu is not None and self._gpu.is_busy

    def check(self) -> str | None:
        """See whether what is in flight can still end, and give it up if not: why. By the engine's own thread."""
        if self._gpu is None or self.trouble is not None:
            return self.trouble
        if not self._is_relaxed:
            self._is_relaxed = True
            self._gpu.driver.relax_capture()
        return self._look(self._gpu)

    def check_from_waiter(self) -> None:
        """The same by another thread, while the engine's own may be stuck in NCCL, which waits for other ranks."""
        if self._gpu is not None and self.trouble is None:
            with self._gpu.driver.relaxed_capture():
                self._look(self._gpu)

    def _look(self, gpu: Gpu) -> str | None:
        reason = self._fallen()
        try:
            if reason is None:
                gpu.look(time.monotonic())
        except CollectiveError as error:
            reason = str(error)
        if reason is not None:
            log.error("operations on the GPU are given up: %s", reason)  # the script may not ask for their results
            self.abort(reason)
        return reason

    def abort(self, reason: str) -> None:
        """End what runs on the device."""
        if self._gpu is not None and self.trouble is None:
            self.trouble = self.unreported_error = (
                reason  # at once: who waits for the device is free, and told, before the next line ends
            )
            if not self._gpu.abort(reason):
                self.unreported_error = None

    def close(self, is_hurried: bool = False) -> None:
        """Let what is in flight end, for which little time is given if nobody will need it, and let go of the GPU."""
        if self._gpu is not None:
            self.unreported_error = (
                self._gpu.close(DRAIN_TIMEOUT) if is_hurried else self._gpu.close()
            ) or self.unreported_error
            self._gpu = None
