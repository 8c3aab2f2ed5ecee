"""Output on rank 0 only: what the other ranks print is dropped, except their errors.

After the first training step rank 0 prints what was changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

import distrun
from distrun.auto import job

_real_stderr: TextIO | None = None  # of a muted rank


def mute() -> None:
    """Drop what this process prints after this call.

    What C libraries print to the standard error is kept, because they report crashes there.
    """
    global _real_stderr
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    _real_stderr = sys.stderr
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process


def speak() -> None:
    """Let this process print to the standard error again, because it fails and its reason must be seen."""
    global _real_stderr
    if _real_stderr is not None:
        sys.stderr, _real_stderr = _real_stderr, None


def tell(text: str) -> None:
    """Print a text of distrun's own to the standard error, also on a muted rank."""
    stream = _real_stderr or sys.stderr
    stream.write(text + "\n")
    stream.flush()


def announce(sizes: Sequence[int] | None, of_numbers: str) -> None:
    """Print once, on rank 0, how the first batch was divided.

    Args:
        sizes: the number of samples of each rank, or None if they are not known.
        of_numbers: a sentence about the numbers that the script prints: which are of all ranks, which of rank 0 alone.
    """
    if distrun.rank() or job.current.is_announced:
        return
    job.current.is_announced = True
    where = f"distrun --auto: {job.current.script} trains on {distrun.size()} ranks"
    parts = "" if sizes is None else "+".join(map(str, sizes))
    if job.current.mode == "scale":
        step = "" if sizes is None else f" ({parts} = {sum(sizes)} samples a step)"
        tell(
            f"{where}: each takes a batch of the script's size{step}. The learning rate is the script's: many multiply "
            f"it by {distrun.size()} (SGD), or by the square root of that (Adam), and begin with less."
        )
    else:
        batch = "each batch is divided" if sizes is None else f"each batch of {sum(sizes)} is divided ({parts})"
        tell(f"{where}: {batch}, gradients are averaged.")
    tell(f"distrun --auto: rank 0 alone prints and writes files. {of_numbers}")
