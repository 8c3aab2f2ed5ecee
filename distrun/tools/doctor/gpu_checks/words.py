"""The words that the verdicts on GPUs share. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from distrun.runner.system.cpus import format_cpus
from distrun.tools.doctor.report import HostCheck, Status


def unchecked(name: str, reason: str) -> HostCheck:
    """Return the result of a check that could not be made."""
    return HostCheck(name, Status.NOT_TRIED, f"not checked: {reason}")


def named(gpus: Collection[int]) -> str:
    """Return the name of some GPUs: `GPU 3`, `GPUs 0-2,5`."""
    return f"GPU{'s' * (len(gpus) != 1)} {format_cpus(gpus)}"


def gigabytes(rate: float) -> str:
    """Return bytes per second as text with three digits: 8.31 GB/s, 376 GB/s."""
    return f"{rate / 1e9:.3g} GB/s"


def judged(name: str, text: str, troubles: Sequence[tuple[str, str]]) -> HostCheck:
    """Return a verdict: a warning if there are troubles, each with its remedy, otherwise `text` alone."""
    if not troubles:
        return HostCheck(name, Status.OK, text)
    remedies = dict.fromkeys(remedy for _, remedy in troubles)
    words = "; ".join(trouble for trouble, _ in troubles)
    return HostCheck(name, Status.WARNING, f"{text}: {words}" if text else words, remedy="; ".join(remedies))
