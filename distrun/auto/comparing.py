"""Comparing the ranks: their weights, which must be the same to the last bit, their places in the training loop, and
which steps are tried.

No clock decides about trials. Ranks draw other random numbers in a step that is tried, so a script that is run again
with the same seeds must have the same steps tried to end with the same weights.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import distrun
from distrun.auto.refusing import refuse

_WHY = (
    "Something in the script is not the same on all ranks, such as a decision by chance, by time, or by a number of "
    "one rank's part"
)
_IN_STEP = (
    "loss.backward()  # on all ranks, or on none: `loss` is that of the whole batch, and the same number on all",
    "if not math.isfinite(loss.item()): continue  # so this is the same decision on all ranks",
)


def compare(
    values: Callable[[], tuple[Sequence[str], Sequence[int]]],
    step: int,
    what: str = "weights",
    why: str = _WHY,
    lines: Sequence[str] = (),
) -> None:
    """End the job if a parameter is not the same on all ranks.

    Args:
        values: returns the names of the parameters, in the same order on all ranks, and a number for each that depends
            on all its bits, as a signed 64-bit integer.
        step: the number of steps so far, for the text.
        what: the name of what is compared, for the text.
        why: a sentence that says how they may have come to differ.
        lines: lines of code that the user may write instead.
    """
    names, rows = _of_all_ranks(values)
    if len({len(row) for row in rows}) > 1:
        gc.collect()  # models that are no longer used may be left in reference cycles on some ranks
        names, rows = _of_all_ranks(values)
    counts = [len(row) for row in rows]
    if len(set(counts)) > 1:
        refuse(f"the ranks do not have the same {what} after step {step}: there are {counts}. {why}", lines)
    differing = np.flatnonzero((np.array(rows) != rows[0]).any(axis=0))
    if differing.size:
        which = names[int(differing[0])]
        more = f" and {differing.size - 1} others" if differing.size > 1 else ""
        refuse(f"the {what} of the ranks differ after step {step}: {which}{more}. {why}", lines)


def _of_all_ranks(
    values: Callable[[], tuple[Sequence[str], Sequence[int]]],
) -> tuple[Sequence[str], list[np.ndarray[Any, np.dtype[np.int64]]]]:
    names, sums = values()
    table = distrun.allgather(np.array([len(sums), *sums], np.int64), name="auto.weights")
    rows = []
    while table.size:
        count = int(table[0])
        rows.append(table[1 : count + 1])
        table = table[count + 1 :]
    return names, rows


# Places in the training loop ------------------------------------------------------------------------------------------


class LoopPosition(NamedTuple):
    """A place in a training loop; all numbers count from 1."""

    iteration: int
    """The iteration over a `DataLoader` that is divided."""
    batch: int
    """0 at the end of the iteration."""
    call: int
    """The call of `backward()` or `torch.autograd.grad` on the batch; 0 before the first."""

    def __str__(self) -> str:
        batch = f"batch {self.batch}" if self.batch else "the end"
        what = f"is in call {self.call} of backward() on" if self.call else "has come to"
        return f"{what} {batch} of iteration {self.iteration}"


def announce(place: LoopPosition) -> Callable[[], None]:
    """Tell the other ranks where this one is.

    Returns:
        A function that waits for the others' places, and ends the job if one of them is elsewhere.
    """
    handle = distrun.allgather_async(np.array([place], np.int64), name="auto.place")

    def check() -> None:
        places = [LoopPosition(*row) for row in handle.wait().tolist()]
        other = next((rank for rank, each in enumerate(places) if each != places[0]), 0)
        if other:
            refuse(f"rank 0 {places[0]}, and rank {other} {places[other]}. {_WHY}", _IN_STEP)

    return check


# Which steps are tried ------------------------------------------------------------------------------------------------

_CLOSE = 16  # batches, of which the 1st, 2nd, 4th, 8th and 16th are tried on any number of ranks
_SHORTEST, _LONGEST = 10, 100  # times the number of ranks: distances after these, as a trial takes a step for each rank
_FARTHEST = 2000  # batches; distances may double to this even on few ranks


class TrialSchedule:
    """Counts the batches of a training loop, and says which of them are tried."""

    def __init__(self) -> None:
        self._batches = 0
        self._next = 1
        self._brought_forward = 0

    @property
    def is_due_next(self) -> bool:
        """Whether the step on the next batch will be tried, whether or not there is a new optimizer then."""
        return self._batches + 1 == self._next

    def bring_forward(self) -> None:
        """Have the next step tried, as something is new in this one; at most 16 times."""
        if self._brought_forward < _CLOSE:
            self._brought_forward += 1
            self._next = self._batches + 1

    def advance(self, is_new: bool, size: int) -> bool:
        """Count a batch; return whether its step is to be tried.

        Args:
            is_new: whether an optimizer is new since the last batch: the counting begins again.
            size: the number of ranks.
        """
        if is_new:
            self._batches, self._next = 0, 1
        self._batches += 1
        if self._batches < self._next:
            return False
        distance = min(self._batches, max(_FARTHEST, _LONGEST * size))
        self._next += max(distance, _SHORTEST * size) if self._batches >= _CLOSE else distance
        return True
