"""The engine of a world of one: an operation is executed where it is submitted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from distrun.errors import JobAbortedError
from distrun.runtime.backends.dispatch import execute
from distrun.runtime.backends.groups import Groups
from distrun.runtime.backends.single_process import SingleProcessBackend
from distrun.runtime.gpu.config import GpuConfig
from distrun.runtime.gpu.monitor import GpuMonitor
from distrun.runtime.operations.engine import Awaited
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import CPU

if TYPE_CHECKING:
    from distrun.runtime.gpu.gpu import Gpu


class SingleProcessEngine:
    """An `Engine` with no other rank to agree with."""

    def __init__(self, gpu_config: GpuConfig | None = None) -> None:
        """`gpu_config` is given if this rank is bound to a GPU."""
        self.backend = SingleProcessBackend()
        self.groups = Groups(self.backend)
        self._gpu_monitor = GpuMonitor(gpu_config, self.groups)
        self._lock = threading.Lock()  # held by the thread that uses the GPU
        self._failure: str | None = None

    def gpu(self) -> Gpu:
        """The GPU of this rank. Raises `UsageError` if it has none that can be used."""
        return self._gpu_monitor.gpu()

    def submit(self, handle: Handle) -> Handle:
        """Execute the operation."""
        if self._failure is not None:
            raise JobAbortedError(self._failure)
        if handle.request.device == CPU:
            execute(self.groups, [handle])
        else:
            gpu = self._gpu_monitor.gpu()
            with self._lock:
                gpu.execute([handle])  # type: ignore[list-item]
        handle.done = True
        if handle.when_done is not None:
            handle.when_done(handle)
        return handle

    run = submit

    def wait(self, handle: Awaited) -> None:
        """Do nothing: no operation is ever under way."""

    is_served_at_once = True
    """Every operation is done when `submit` returns."""

    def ensure_progress(self) -> None:
        """Do nothing: no operation is ever under way."""

    def fail(self, reason: str) -> None:
        """Refuse all further operations, for this reason: this world is over."""
        self._failure = reason

    def disown(self) -> None:
        """Do nothing: a forked child may continue alone."""

    def who_is_missing(self, handle: Handle) -> str:
        """Return an empty text: no rank is missing."""
        return ""

    def give_up(self, handle: Handle, why: str) -> str:
        """Return "": every operation is done."""
        return ""

    def error_reported(self) -> None:
        """Do nothing: every error is raised where it happens."""

    def shutdown(self, farewell: str = "") -> str | None:
        """Release the GPU."""
        self._gpu_monitor.close()
        return None
