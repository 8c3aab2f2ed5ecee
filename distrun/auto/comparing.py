"""Comparisons of the ranks: their weights, to the last bit, their places in the loop, and the schedule of trials.

The schedule uses no clock. Ranks draw other random numbers in a step that is tried, so to end with the same weights, a
script that is run again with the same seeds must get trials in the same steps.
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
    """End the job if any parameter differs between the ranks.

    Args:
        values: returns the names of the parameters, in the same order on all ranks, each with a signed 64-bit integer
            that depends on all its bits.
        step: the number of steps so far, for the message.
        what: the name of what is compared, for the message.
        why: a sentence about the possible cause of a difference.
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


def _of_all_ranks(values: Callable[[], tuple[Sequence[str], Sequence[int]]]) -> tuple[Sequence[str], list[Any]]:
    names, sums = values()
    table = distrun.allgather(np.array([len(sums), *sums], np.int64), name="auto.weights")
    rows = []
    while table.size:
        row, table = np.split(table, [int(table[0]) + 1])
        rows.append(row[1:])
    return names, rows


# Places in the training loop ------------------------------------------------------------------------------------------


class LoopPosition(NamedTuple):
    """A place in a training loop. All numbers count from 1."""

    iteration: int
    """The number of the iteration over a divided `DataLoader`."""
    batch: int
    """The number of the batch in the iteration. 0 at the end of the iteration."""
    call: int
    """The number of the call of `backward()` or `torch.autograd.grad` on the batch. 0 before the first."""

    def __str__(self) -> str:
        batch = f"batch {self.batch}" if self.batch else "the end"
        what = f"is in call {self.call} of backward() on" if self.call else "has come to"
        return f"{what} {batch} of iteration {self.iteration}"


def announce(place: LoopPosition) -> Callable[[], None]:
    """Send the other ranks this one's place.

    Returns:
        A function that waits for the other ranks' places, and ends the job if any of them differs.
    """
    handle = distrun.allgather_async(np.array([place], np.int64), name="auto.place")

    def check() -> None:
        places = [LoopPosition(*row) for row in handle.wait().tolist()]
        other = next((rank for rank, each in enumerate(places) if each != places[0]), 0)
        if other:
            refuse(f"rank 0 {places[0]}, and rank {other} {places[other]}. {_WHY}", _IN_STEP)

    return check


# Which steps are tried ------------------------------------------------------------------------------------------------

_CLOSE = 16  # batches: the 1st, 2nd, 4th, 8th and 16th are tried, on any number of ranks
# Distances after that, times the number of ranks, because a trial takes as long as a step of each rank:
_SHORTEST, _LONGEST = 10, 100
_FARTHEST = 2000  # batches: distances may double up to this even on few ranks


class TrialSchedule:
    """Counts the batches of a training loop, and decides which of them are tried."""

    def __init__(self) -> None:
        self._batches = 0
        self._next = 1
        self._brought_forward = 0

    @property
    def is_due_next(self) -> bool:
        """Whether the step on the next batch will be tried even without a new optimizer."""
        return self._batches + 1 == self._next

    def bring_forward(self) -> None:
        """Schedule a trial of the next step, because this one had something new. At most 16 calls have an effect."""
        if self._brought_forward < _CLOSE:
            self._brought_forward += 1
            self._next = self._batches + 1

    def advance(self, is_new: bool, size: int) -> bool:
        """Count a batch, and return whether its step is tried.

        Args:
            is_new: whether an optimizer is new since the last batch, which restarts the schedule.
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
