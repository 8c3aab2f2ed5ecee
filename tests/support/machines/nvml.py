"""NVIDIA's library NVML as three machines answer it, and what programs of the doctor measured there.

Written after what such machines print (nvidia-smi topo -m, -q, nvlink -s), not recorded on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from distrun.tools.doctor.gpu_checks.nvml import SWITCH, GpuState, GpuStates

_NOT_SUPPORTED, _INVALID = 3, 2


def _states(gpus: Sequence[GpuState], level: Callable[[int, int], int]) -> GpuStates:
    numbers = range(len(gpus))
    return GpuStates(list(gpus), [[None if i == j else level(i, j) for j in numbers] for i in numbers])


def h100(place: str, **others: Any) -> GpuState:
    """A sound H100 of a DGX, with 18 NVLinks to switches."""
    usual = GpuState(
        *(place, True, 0, 0, 0x1, 345, 1980, 31, True, 0, 5, 16, 16),
        links=[SWITCH] * 18,
        link_speed=26562,
    )
    return GpuState(**{**vars(usual), **others})


def a40(place: str, **others: Any) -> GpuState:
    """A sound A40 without an NVLink bridge."""
    usual = GpuState(*(place, True, 0, 0, 0x0, 1740, 1740, 52, True, 0, 4, 16, 16), links_down=4)
    return GpuState(**{**vars(usual), **others})


DGX_PLACES = [f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
DGX = _states([h100(place) for place in DGX_PLACES], lambda i, j: 40 if i // 4 == j // 4 else 50)
"""8 GPUs that NVSwitches connect, four on each of two processors."""

PCIE_PLACES = [f"0000:{bus}:00.0" for bus in ("17", "31", "b1", "ca")]
PCIE = _states([a40(place) for place in PCIE_PLACES], lambda i, j: 20 if i // 2 == j // 2 else 50)
"""4 GPUs on PCIe, two on each of two processors."""

WORKSTATION = _states(
    [
        GpuState(
            *("0000:01:00.0", None, None, None, 0x28, 810, 2520, 92, False, 0, 4, 8, 16),
        )
    ],
    lambda i, j: 0,
)
"""One GPU without ECC that is too hot, in a slot with eight lanes."""


def copied(states: GpuStates, rate: Callable[[int, int], float], **others: Any) -> dict[str, Any]:
    """The output of the program `copies`: GB/s from one GPU to another, and P2P between all, if not said otherwise."""
    numbers = range(len(states.gpus))
    return {
        "places": [gpu.place for gpu in states.gpus],
        "access": [[True for _ in numbers] for _ in numbers],
        "rates": [[None if i == j else rate(i, j) * 1e9 for j in numbers] for i in numbers],
        "wrong": [],
        **others,
    }


def library(states: GpuStates, **others: Any) -> Any:
    """Return a libnvidia-ml that tells of these GPUs. None of a state is an error of the function, as in NVML."""
    gpus = states.gpus
    missing = {name for name, function in others.items() if function is None}

    def value(attribute: str) -> Callable[..., int]:
        def function(device: Any, *arguments: Any) -> int:
            return _give(arguments[-1], getattr(gpus[device.value - 1], attribute))

        return function

    def handle(index: int, device: Any) -> int:
        device._obj.value = index + 1
        return 0

    def pci(device: Any, found: Any) -> int:
        return _place(found, gpus[device.value - 1].place)

    def ecc_mode(device: Any, now: Any, later: Any) -> int:
        return _give(now, gpus[device.value - 1].ecc) or _give(later, gpus[device.value - 1].ecc)

    def ecc_errors(device: Any, kind: int, since: int, count: Any) -> int:
        assert kind == 1  # uncorrected
        gpu = gpus[device.value - 1]
        return _give(count, gpu.uncorrected_ever if since else gpu.uncorrected)

    def link_state(device: Any, link: int, state: Any) -> int:
        gpu = gpus[device.value - 1]
        if link >= len(gpu.links) + gpu.links_down:
            return _INVALID
        return _give(state, link < len(gpu.links))

    def link_end(device: Any, link: int, found: Any) -> int:
        end = gpus[device.value - 1].links[link]
        return _place(found, "0000:85:00.0" if end == SWITCH else end)

    def link_kind(device: Any, link: int, found: Any) -> int:
        return _give(found, 2 if gpus[device.value - 1].links[link] == SWITCH else 0)

    def fields(device: Any, count: int, found: Any) -> int:
        assert (count, found._obj.field) == (1, 90)
        speed = gpus[device.value - 1].link_speed
        found._obj.status = 0 if speed else _NOT_SUPPORTED
        found._obj.value = speed or 0
        return 0

    def ancestor(one: Any, other: Any, level: Any) -> int:
        return _give(level, states.ancestors[one.value - 1][other.value - 1])

    functions = {
        "nvmlInit_v2": lambda: 0,
        "nvmlShutdown": lambda: 0,
        "nvmlErrorString": lambda status: b"Driver/library version mismatch",
        "nvmlDeviceGetCount_v2": lambda count: _give(count, len(gpus)),
        "nvmlDeviceGetHandleByIndex_v2": handle,
        "nvmlDeviceGetPciInfo_v3": pci,
        "nvmlDeviceGetEccMode": ecc_mode,
        "nvmlDeviceGetTotalEccErrors": ecc_errors,
        "nvmlDeviceGetCurrentClocksEventReasons": value("throttle"),
        "nvmlDeviceGetCurrentClocksThrottleReasons": value("throttle"),
        "nvmlDeviceGetClockInfo": value("clock"),
        "nvmlDeviceGetMaxClockInfo": value("highest_clock"),
        "nvmlDeviceGetTemperature": value("temperature"),
        "nvmlDeviceGetPersistenceMode": value("persistence"),
        "nvmlDeviceGetComputeMode": value("compute_mode"),
        "nvmlDeviceGetMaxPcieLinkGeneration": value("pcie_generation"),
        "nvmlDeviceGetCurrPcieLinkWidth": value("pcie_width"),
        "nvmlDeviceGetMaxPcieLinkWidth": value("widest_pcie"),
        "nvmlDeviceGetNvLinkState": link_state,
        "nvmlDeviceGetNvLinkRemoteDeviceType": link_kind,
        "nvmlDeviceGetNvLinkRemotePciInfo_v2": link_end,
        "nvmlDeviceGetFieldValues": fields,
        "nvmlDeviceGetTopologyCommonAncestor": ancestor,
        **others,
    }
    return SimpleNamespace(**{name: function for name, function in functions.items() if name not in missing})


def _give(reference: Any, value: Any) -> int:
    if value is None:
        return _NOT_SUPPORTED
    reference._obj.value = int(value)
    return 0


def _place(found: Any, place: str) -> int:
    found._obj.bus_id = f"0000{place}".upper().encode()
    return 0
