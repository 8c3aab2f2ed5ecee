"""The errors of GPUs in the kernel's log, which NVIDIA's driver numbers (Xid), and what their numbers mean."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass

# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
_KMSG = "/dev/kmsg"
_PROGRAMS = (("dmesg",), ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet"))
_TIMEOUT = 10.0  # seconds for each of them

OF_PROGRAMS = {13, 31, 43, 45}
"""Errors that programs cause: an illegal access, and the end of a program that uses a GPU."""

MEANINGS = {
    48: "a memory error that ECC cannot correct",
    63: "a memory row was replaced, or will be at the next reset",
    64: "a memory row could not be replaced",
    74: "an error of NVLink",
    79: "the GPU has fallen off the bus",
    92: "many memory errors that ECC has corrected",
    94: "a memory error that ended one program",
    95: "a memory error that may have reached any program",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor has failed",
}


@dataclass(frozen=True)
class Xid:
    """The errors of one number on one GPU."""

    place: str
    """The PCI address of the GPU, such as 0000:3b:00."""
    number: int
    count: int
    text: str
    """The driver's words about the last one."""


def read(path: str = _KMSG) -> tuple[list[Xid], str]:
    """Return the errors in the kernel's log, and the reason if that cannot be read."""
    try:
        return parse("\n".join(_records(path))), ""
    except OSError as error:
        refusal = f"{path}: {error.strerror}"
    for program in _PROGRAMS:
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                program, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT
            )
            if not done.returncode and done.stdout.strip():  # journalctl finds nothing if it may not see the log
                return parse(done.stdout), ""
    return [], refusal


def parse(log: str) -> list[Xid]:
    """Return the errors in the text of the kernel's log, in the order of their first appearance."""
    found: dict[tuple[str, int], tuple[int, str]] = {}
    for match in _LINE.finditer(log):
        key = match[1].lower(), int(match[2])
        found[key] = found.get(key, (0, ""))[0] + 1, (match[3] or "").strip()
    return [Xid(place, number, count, text) for (place, number), (count, text) in found.items()]


def _records(path: str) -> list[str]:
    """Return the records of /dev/kmsg, each of which one read returns."""
    descriptor, records = os.open(path, os.O_RDONLY | os.O_NONBLOCK), []
    try:
        while record := _record(descriptor):
            records.append(record.decode(errors="replace"))
    except BlockingIOError:  # the end
        pass
    finally:
        os.close(descriptor)
    return records


def _record(descriptor: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, 1 << 16)
        except BrokenPipeError:  # the record was overwritten; the next read goes on with the oldest one
            continue
