"""Comparing the weights of the ranks: they must be the same to the last bit, or something has gone wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import distrun
from distrun.auto.refusing import refuse

_WHY = (
    "Something in the script is not the same on all ranks, such as a decision by chance, by time, or by a number of "
    "one rank's part"
)


def compare(names: Sequence[str], sums: Sequence[int], step: int, what: str = "weights", why: str = _WHY) -> None:
    """End the job if a parameter is not the same on all ranks.

    Args:
        names: of the parameters, in the same order on all ranks.
        sums: a number for each that depends on all its bits, as a signed 64-bit integer.
        step: the number of steps so far, for the text.
        what: the name of what is compared, for the text.
        why: a sentence that says how they may have come to differ.
    """
    mine = np.array([len(sums), *sums], np.int64)
    table = distrun.allgather(mine, name="auto.weights")
    if table.size != mine.size * distrun.size():
        refuse(f"the ranks do not train the same parameters after step {step}: rank {distrun.rank()} has {len(sums)}")
    rows = table.reshape(distrun.size(), -1)[:, 1:]
    differing = np.flatnonzero((rows != rows[0]).any(axis=0))
    if differing.size:
        which = names[int(differing[0])]
        more = f" and {differing.size - 1} others" if differing.size > 1 else ""
        refuse(f"the {what} of the ranks differ after step {step}: {which}{more}. {why}")
