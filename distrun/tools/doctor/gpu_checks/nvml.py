"""The GPUs as NVIDIA's management library (NVML) describes them: their links, memory errors, clocks and modes.

It is called by ctypes, since every driver has the library, and not every host a package for it. That creates no context
on any GPU. A value that a GPU or a driver does not have is None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SWITCH = "switch"
"""The other end of an NVLink, where it is an NVSwitch."""

_MOST_LINKS = 18  # NVML_NVLINK_MAX_LINKS
_TO_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
_LINK_SPEED = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
_UNCORRECTED, _SINCE_LOADED, _EVER = 1, 0, 1
_SM = 1  # NVML_CLOCK_SM


@dataclass(frozen=True)
class GpuState:
    """One GPU."""

    place: str
    """Its PCI address, such as 0000:3b:00.0."""
    ecc: bool | None = None
    uncorrected: int | None = None
    """The memory errors that ECC did not correct since the driver was loaded."""
    uncorrected_ever: int | None = None
    throttle: int | None = None
    """The reasons for its present clocks, as NVML's bits."""
    clock: int | None = None
    """The present clock of the processors in MHz."""
    highest_clock: int | None = None
    temperature: int | None = None
    """Degrees Celsius."""
    persistence: bool | None = None
    compute_mode: int | None = None
    pcie_generation: int | None = None
    """The newest generation that GPU and slot have in common. An idle GPU runs at an older one."""
    pcie_width: int | None = None
    """The width in use, such as 16."""
    widest_pcie: int | None = None
    links: list[str] = field(default_factory=list)
    """The other end of each NVLink that is up: the PCI address of a GPU, or `SWITCH`."""
    links_down: int = 0
    link_speed: int | None = None
    """The speed of one NVLink in MB/s, one way."""


@dataclass(frozen=True)
class GpuStates:
    """The GPUs of a host, in the order of their PCI addresses."""

    gpus: list[GpuState] = field(default_factory=list)
    ancestors: list[list[int | None]] = field(default_factory=list)
    """How far up the PCI bus the nearest common ancestor of two GPUs is, as an nvmlGpuTopologyLevel_t."""
    problem: str = ""
    """The reason why NVML tells nothing."""

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> GpuStates:
        """Return what `dataclasses.asdict` made a dictionary of."""
        return cls(**{**found, "gpus": [GpuState(**gpu) for gpu in found["gpus"]]})


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("legacy_bus_id", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "device_id", "subsystem_id")),
        ("bus_id", ctypes.c_char * 32),
    )


class _FieldValue(ctypes.Structure):
    _fields_ = (
        *(("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("time", ctypes.c_longlong)),
        *(("latency", ctypes.c_longlong), ("kind", ctypes.c_uint), ("status", ctypes.c_uint)),
        ("value", ctypes.c_ulonglong),  # a union, of which an unsigned int is the first half
    )


def read(load: Callable[[], Any] = lambda: ctypes.CDLL("libnvidia-ml.so.1")) -> GpuStates:
    """Return the GPUs of this host. `load` returns the library, or raises OSError."""
    try:
        library = load()
    except OSError as error:
        return GpuStates(problem=f"NVIDIA's library libnvidia-ml.so.1 cannot be loaded ({error})")
    if status := library.nvmlInit_v2():
        library.nvmlErrorString.restype = ctypes.c_char_p
        return GpuStates(problem=f"NVML does not start: {library.nvmlErrorString(status).decode()}")
    try:
        calls = _Calls(library)
        count = calls.number("nvmlDeviceGetCount_v2") or 0
        devices = [calls.device(index) for index in range(count)]
        ancestors = [[None if one is other else calls.ancestor(one, other) for other in devices] for one in devices]
        return GpuStates([_state(calls, device) for device in devices], ancestors)
    finally:
        library.nvmlShutdown()


class _Calls:
    """The library's functions, which return None where they fail or do not exist."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        found = kind()
        return int(found.value) if self._call(name, *arguments, ctypes.byref(found)) else None

    def truth(self, name: str, *arguments: Any) -> bool | None:
        found = self.number(name, *arguments)
        return None if found is None else bool(found)

    def device(self, index: int) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
        return device

    def place(self, name: str, *arguments: Any) -> str:
        found = _PciInfo()
        self._call(name, *arguments, ctypes.byref(found))
        return str(found.bus_id.decode().lower()[-12:])  # 00000000:3B:00.0

    def ancestor(self, one: ctypes.c_void_p, other: ctypes.c_void_p) -> int | None:
        return self.number("nvmlDeviceGetTopologyCommonAncestor", one, other)

    def ecc(self, device: ctypes.c_void_p) -> bool | None:
        now, later = ctypes.c_uint(), ctypes.c_uint()
        known = self._call("nvmlDeviceGetEccMode", device, ctypes.byref(now), ctypes.byref(later))
        return bool(now.value) if known else None

    def link_speed(self, device: ctypes.c_void_p) -> int | None:
        found = _FieldValue(field=_LINK_SPEED)
        known = self._call("nvmlDeviceGetFieldValues", device, 1, ctypes.byref(found)) and not found.status
        return (int(found.value) & 0xFFFFFFFF) or None if known else None

    def _call(self, name: str, *arguments: Any) -> bool:
        function = getattr(self._library, name, None)
        return function is not None and not function(*arguments)


def _state(calls: _Calls, device: ctypes.c_void_p) -> GpuState:
    errors = ("nvmlDeviceGetTotalEccErrors", device, _UNCORRECTED)
    up = [calls.truth("nvmlDeviceGetNvLinkState", device, link) for link in range(_MOST_LINKS)]
    reasons = calls.number("nvmlDeviceGetCurrentClocksEventReasons", device, kind=ctypes.c_ulonglong)
    if reasons is None:  # the name of before driver 535
        reasons = calls.number("nvmlDeviceGetCurrentClocksThrottleReasons", device, kind=ctypes.c_ulonglong)
    return GpuState(
        calls.place("nvmlDeviceGetPciInfo_v3", device),
        calls.ecc(device),
        calls.number(*errors, _SINCE_LOADED, kind=ctypes.c_ulonglong),
        calls.number(*errors, _EVER, kind=ctypes.c_ulonglong),
        reasons,
        calls.number("nvmlDeviceGetClockInfo", device, _SM),
        calls.number("nvmlDeviceGetMaxClockInfo", device, _SM),
        calls.number("nvmlDeviceGetTemperature", device, 0),
        calls.truth("nvmlDeviceGetPersistenceMode", device),
        calls.number("nvmlDeviceGetComputeMode", device),
        calls.number("nvmlDeviceGetMaxPcieLinkGeneration", device),
        calls.number("nvmlDeviceGetCurrPcieLinkWidth", device),
        calls.number("nvmlDeviceGetMaxPcieLinkWidth", device),
        [_end(calls, device, link) for link, is_up in enumerate(up) if is_up],
        up.count(False),
        calls.link_speed(device),
    )


def _end(calls: _Calls, device: ctypes.c_void_p, link: int) -> str:
    if calls.number("nvmlDeviceGetNvLinkRemoteDeviceType", device, link) == _TO_SWITCH:
        return SWITCH
    return calls.place("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, link)
