"""Devices as objects."""

from __future__ import annotations

import threading
from typing import Any

from cupy.cuda import runtime


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack: list[int] = []


_thread = _Thread()


class Device:
    """A device; a context manager that makes it current."""

    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        before = runtime.getDevice()
        _thread.stack.append(before)
        if self.id != before:
            runtime.setDevice(self.id)
        return self

    def __exit__(self, *args: object) -> None:
        runtime.setDevice(_thread.stack.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> Device:
        runtime.setDevice(self.id)
        return self

    def synchronize(self) -> None:
        before = runtime.getDevice()
        try:
            runtime.setDevice(self.id)
            runtime.deviceSynchronize()
        finally:
            runtime.setDevice(before)
