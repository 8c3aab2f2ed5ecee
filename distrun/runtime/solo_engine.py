"""The engine of a world of one: an operation is carried out where it is submitted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

from distrun.runtime.backends.solo import SoloBackend
from distrun.runtime.gpu.setting import Setting
from distrun.runtime.gpu.station import Station
from distrun.runtime.handles import Handle
from distrun.runtime.performing import perform
from distrun.runtime.request import CPU

if TYPE_CHECKING:
    from distrun.runtime.gpu.gpu import Gpu
    from distrun.runtime.gpu.handles import DeviceHandle


class SoloEngine:
    """Has the same verbs as `Engine`, with nobody to agree with."""

    def __init__(self, gpu_setting: Setting | None = None) -> None:
        """`gpu_setting` is given if this rank is bound to a GPU."""
        self.backend = SoloBackend()
        self._station = Station(gpu_setting, self.backend)
        self._lock = threading.Lock()  # held by who uses the GPU

    def gpu(self) -> Gpu:
        """The GPU of this rank; raises `UsageError` if it has none that can be used."""
        return self._station.gpu()

    def submit(self, handle: Handle) -> Handle:
        """Carry the operation out."""
        if handle.request.device == CPU:
            perform(self.backend, [handle])
        else:
            gpu = self.gpu()
            with self._lock:
                gpu.perform([cast("DeviceHandle", handle)])
        handle.done = True
        return handle

    run = submit

    def wait(self, handle: Handle) -> None:
        """Nothing is ever under way."""

    def hurry(self) -> None:
        """Nothing is ever under way."""

    def disown(self) -> None:
        """A forked child may go on alone: nobody else is concerned."""

    def told(self) -> None:
        """Whatever goes wrong is raised where it happens."""

    def shutdown(self, farewell: str = "") -> str | None:
        """Let go of the GPU."""
        self._station.close()
        return None
