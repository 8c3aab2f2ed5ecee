"""The simulated GPU's libcuda.so.1, as far as distrun calls it by ctypes; `patch` puts it into distrun's driver."""

from __future__ import annotations

import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

from simulator import capture, machine

_NAME = "libcuda.so.1"


def _exchange_mode(reference: Any) -> int:
    reference._obj.value = capture.exchange_mode(reference._obj.value)
    return 0


def _context_state(device: int, flags: Any, active: Any) -> int:
    flags._obj.value = 0
    active._obj.value = int(device in machine.touched())
    return 0


_LIBRARY = SimpleNamespace(cuThreadExchangeStreamCaptureMode=_exchange_mode, cuDevicePrimaryCtxGetState=_context_state)


class _Ctypes:
    """The module ctypes, with a libcuda."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ctypes, name)

    def CDLL(self, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: N802
        return _LIBRARY if name == _NAME else ctypes.CDLL(name, *arguments, **named)


def patched() -> Any:
    """Return a ctypes with the simulated libcuda, to stand in the place of a module's own."""
    return _Ctypes()


def patch(module: ModuleType) -> None:
    """Let a module that uses ctypes find the simulated libcuda."""
    module.ctypes = patched()  # type: ignore[attr-defined]
