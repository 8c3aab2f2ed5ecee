"""The GPUs of this process: the visible ones, the one that a thread has made current, and those it has touched."""

from __future__ import annotations

import hashlib
import operator
import os
import threading
from typing import Any

from simulator.errors import INVALID_DEVICE, PEER_ALREADY_ENABLED, PEER_UNSUPPORTED, CUDARuntimeError

lock = threading.RLock()
changed = threading.Condition(lock)  # any stream, event or capture has

_FIRST_BUS = 0x3B
_contexts: dict[int, set[str]] = {}  # device: names of the threads that have touched it
_peers: set[tuple[int, int]] = set()  # whose access to the memory of which device is enabled
_sticky: dict[int, int] = {}  # device: the error of which it has failed


class _Thread(threading.local):
    device = 0


_thread = _Thread()


def visible() -> list[int]:
    """Return the physical numbers of the GPUs that this process sees."""
    present = int(os.environ.get("SIMULATED_GPUS", "1"))
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(range(present))
    numbers: list[int] = []
    for word in listed.split(","):
        if not word.strip().isdecimal() or int(word) >= present:
            break
        numbers.append(int(word))
    return numbers


def bus_id(device: int) -> str:
    """Return the PCI address in CUDA's spelling."""
    if not 0 <= device < len(visible()):
        raise CUDARuntimeError(INVALID_DEVICE)
    return f"0000:{_FIRST_BUS + visible()[device]:02X}:00.0"


def uuid(device: int) -> bytes:
    """Return a GPU's own identity. Each of the hosts that a test pretends to have has GPUs of its own."""
    return hashlib.md5(f"{os.environ.get('DISTRUN_HOSTNAME')} {bus_id(device)}".encode()).digest()


def current_device() -> int:
    """Return the calling thread's device, without creating a context on it."""
    return _thread.device


def set_device(device: int) -> None:
    """Make a device the calling thread's, and create a context on it, as CUDA 12 does."""
    if not 0 <= device < len(visible()):
        raise CUDARuntimeError(INVALID_DEVICE)
    _thread.device = device
    touch()


def can_access(device: int, peer: int) -> bool:
    """Return whether a device can access the memory of another one."""
    if not {device, peer} <= set(range(len(visible()))):
        raise CUDARuntimeError(INVALID_DEVICE)
    return device != peer and is_listed("SIMULATED_GPU_PEERS", device, peer, unset=True)


def enable_access(peer: int) -> None:
    """Let the current device access the memory of another one."""
    pair = (touch(), peer)
    if pair[0] == peer:
        raise CUDARuntimeError(INVALID_DEVICE)
    if not can_access(*pair):
        raise CUDARuntimeError(PEER_UNSUPPORTED)
    if pair in _peers:
        raise CUDARuntimeError(PEER_ALREADY_ENABLED)
    _peers.add(pair)


def is_listed(variable: str, one: int, other: int, unset: bool = False) -> bool:
    """Return whether a variable, such as `0-1,1-0`, lists a pair of devices."""
    value = os.environ.get(variable)
    return unset if value is None else f"{one}-{other}" in value.split(",")


def touch() -> int:
    """Create a context on the current device, as everything that needs one does; return the device.

    Raises:
        CUDARuntimeError: the device has failed before, or there is none.
    """
    device = _thread.device
    if device >= len(visible()):
        raise CUDARuntimeError(100)
    with lock:
        _contexts.setdefault(device, set()).add(threading.current_thread().name)
    if device in _sticky:
        raise CUDARuntimeError(_sticky[device])
    return device


def touched(thread: str | None = None) -> set[int]:
    """Return the devices on which this process, or its thread of that name, has created or used a context."""
    return {device for device, threads in _contexts.items() if thread is None or thread in threads}


def forget() -> None:
    """Start afresh for another test: no device is touched or broken, and the first is the calling thread's."""
    _contexts.clear()
    _peers.clear()
    _sticky.clear()
    _thread.device = 0


def break_device(status: int, device: int = 0) -> None:
    """Let a device fail: every later call reports this error, as after an illegal access; 0 repairs it."""
    with changed:
        _sticky.pop(device, None)
        if status:
            _sticky[device] = status
        changed.notify_all()


def failure(device: int) -> int:
    """Return the error with which the device has failed; 0 if it has not."""
    return _sticky.get(device, 0)


def integer(value: Any) -> int:
    """Convert a value as Cython does for an int or an intptr_t."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError("an integer is required") from None


def size(value: Any) -> int:
    """Convert a value as Cython does for a size_t."""
    number = integer(value)
    if number < 0:
        raise OverflowError("can't convert negative value to size_t")
    return number
