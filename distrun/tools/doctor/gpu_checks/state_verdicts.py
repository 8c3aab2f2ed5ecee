"""Verdicts on the state of GPUs: MPS, memory errors, clocks, and errors in the kernel's log. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from distrun.tools.doctor.gpu_checks.nvml import GpuState
from distrun.tools.doctor.gpu_checks.words import judged, named, unchecked
from distrun.tools.doctor.gpu_checks.xids import MEANINGS, OF_PROGRAMS, Xid
from distrun.tools.doctor.report import HostCheck, Status

_PROHIBITED, _EXCLUSIVE = 2, 3  # NVML's compute modes
_COOL = "see to fans, air flow and the temperature of the room"
_SUPPLY = "see to the power supply and its cables"
# NVML's bits, in the order in which they are looked for: the first one explains the others.
_THROTTLES = {
    0x40: ("is slowed down by heat", _COOL),
    0x20: ("is slowed down by heat", _COOL),
    0x80: ("is slowed down by its power supply", _SUPPLY),
    0x08: ("is slowed down by heat or its power supply", f"{_COOL}, or {_SUPPLY.removeprefix('see to ')}"),
}


def mps(running: bool, gpus: Sequence[GpuState]) -> HostCheck:
    """Judge whether MPS runs, and how many processes may use a GPU."""
    text = (
        "MPS runs: ranks that share a GPU (--share-gpus) compute at once, and one that fails may take the others along"
        if running
        else "MPS does not run: ranks that share a GPU (--share-gpus) take turns of milliseconds"
    )
    troubles = []
    if closed := [number for number, gpu in enumerate(gpus) if gpu.compute_mode == _PROHIBITED]:
        troubles.append((f"no process may use {named(closed)} (compute mode Prohibited)", "nvidia-smi -c DEFAULT"))
    single = [number for number, gpu in enumerate(gpus) if gpu.compute_mode == _EXCLUSIVE]
    if single and not running:
        remedy = "nvidia-smi -c DEFAULT, or start MPS: nvidia-cuda-mps-control -d"
        troubles.append((f"one process at a time may use {named(single)} (Exclusive_Process)", remedy))
    return judged("mps", text, troubles)


def ecc(gpus: Sequence[GpuState]) -> HostCheck:
    """Judge ECC, and the memory errors that it did not correct."""
    able = [number for number, gpu in enumerate(gpus) if gpu.ecc is not None]
    if not able:
        return HostCheck("ecc", Status.OK, "these GPUs have no ECC, or do not tell")
    troubles = []
    if off := [number for number in able if not gpus[number].ecc]:
        troubles.append((f"ECC is off on {named(off)}, where flipped bits go unnoticed", "nvidia-smi -e 1, and reboot"))
    for number in able:
        if errors := gpus[number].uncorrected:
            ever = gpus[number].uncorrected_ever
            troubles.append(
                (
                    f"GPU {number} has had {errors} memory errors that ECC did not correct since the driver was loaded"
                    + (f", {ever} in its life" if ever and ever > errors else ""),
                    "reset such a GPU (nvidia-smi --gpu-reset -i N), and have it replaced if they come back",
                )
            )
    old = [number for number in able if gpus[number].uncorrected_ever and not gpus[number].uncorrected]
    past = f" since the driver was loaded; {named(old)} had some before" if old else ""
    on = "ECC is on" if not off else ""
    return judged("ecc", on if troubles else f"{on}, and no error went uncorrected{past}", troubles)


def clocks(gpus: Sequence[GpuState]) -> HostCheck:
    """Judge the reasons for the present clocks, and persistence mode."""
    troubles = []
    for number, gpu in enumerate(gpus):
        for bit, (what, remedy) in _THROTTLES.items():
            if (gpu.throttle or 0) & bit:
                troubles.append((f"GPU {number} {what}: {_pace(gpu)}", remedy))
                break
    off = [number for number, gpu in enumerate(gpus) if gpu.persistence is False]
    if off:
        what = f"persistence mode is off on {named(off)}, so that a program waits for the driver at its start"
        troubles.append((what, "start nvidia-persistenced, or nvidia-smi -pm 1"))
    if all(gpu.throttle is None for gpu in gpus):
        return judged("clocks", "the reasons for the clocks are not told", troubles)
    if troubles:
        return judged("clocks", "", troubles)
    return HostCheck("clocks", Status.OK, f"nothing slows the GPUs down: {_pace(gpus[0])}")


def _pace(gpu: GpuState) -> str:
    clock = f"{gpu.clock} of {gpu.highest_clock} MHz" if gpu.clock and gpu.highest_clock else "clock unknown"
    return clock + (f" at {gpu.temperature} degrees" if gpu.temperature is not None else "")


def xid(errors: Sequence[Xid], refusal: str, gpus: Sequence[GpuState]) -> HostCheck:
    """Judge the errors of GPUs in the kernel's log, or say why it could not be read."""
    if refusal:
        return unchecked("xid", f"the kernel's log cannot be read ({refusal})")
    if not errors:
        return HostCheck("xid", Status.OK, "no error of a GPU (Xid) in the kernel's log")
    troubles, harmless = [], []
    for error in errors:
        number = next((n for n, gpu in enumerate(gpus) if gpu.place.startswith(error.place)), None)
        name = f"the GPU at {error.place}" if number is None else f"GPU {number}"
        meaning = MEANINGS.get(error.number) or error.text or "unknown"
        if error.number in OF_PROGRAMS:
            harmless.append(f"{error.count} x {error.number} on {name}")
        else:
            remedy = "search NVIDIA's XID catalog for the number; reset the GPU, and have it replaced if it comes back"
            troubles.append((f"Xid {error.number} on {name}, {error.count} x: {meaning}", remedy))
    text = f"errors that programs cause (Xid): {', '.join(harmless)}" if harmless else ""
    return judged("xid", text, troubles)
