"""Output on rank 0 only: what the other ranks print is dropped, but for how they fail."""

from __future__ import annotations

import os
import sys
from typing import TextIO

_real_stderr: TextIO | None = None  # of a silenced rank


def silence() -> None:
    """Drop what this process prints from now on. What C libraries print to the standard error stays: they report
    crashes there."""
    global _real_stderr
    if _real_stderr is not None:
        return
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    _real_stderr = sys.stderr
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process


def speak() -> None:
    """Let this process print to the standard error again: it fails, and its reason must be seen."""
    global _real_stderr
    if _real_stderr is not None:
        sys.stderr, _real_stderr = _real_stderr, None


def tell(text: str) -> None:
    """Print a text of ours to the standard error, from any rank."""
    stream = _real_stderr or sys.stderr
    stream.write(text + "\n")
    stream.flush()
