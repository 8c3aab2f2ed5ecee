"""The two lines after the first training step that say what was changed."""

from __future__ import annotations

from collections.abc import Sequence

import distrun
from distrun.auto import job
from distrun.auto.output import tell


def announce(sizes: Sequence[int] | None, of_numbers: str) -> None:
    """Say once, on rank 0, how the first batch was divided.

    Args:
        sizes: the samples of each rank; None if they are not known.
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
