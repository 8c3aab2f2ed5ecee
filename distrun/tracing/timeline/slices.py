"""The slices of a timeline, and the rows that they are on."""

from __future__ import annotations

from typing import NamedTuple

TRAINING, COMMUNICATION = 1, 2
"""The rows of every rank: what its main thread does, and the operations that are executed, one after the other."""
FIRST_OPERATION = 10
"""The first row of single operations, where these are asked for."""

STEP = "step"
MOVING = "moving"
NEGOTIATING = "negotiating"
_WAITING_FOR = "waiting for rank "

INPUT = "waiting for input"


class Slice(NamedTuple):
    """A piece of a row. Times are nanoseconds of the events' clock."""

    row: int
    begin: int
    end: int
    """Equal to `begin` for a mark."""
    name: str
    args: tuple[tuple[str, str | int], ...] = ()
    """Further facts by name."""

    @property
    def is_step(self) -> bool:
        """Whether it is a step of the training."""
        return self.row == TRAINING and self.name.startswith(STEP)

    @property
    def is_wait_for_rank(self) -> bool:
        """Whether it shows that the main thread waits for another rank."""
        return self.row == TRAINING and self.name.startswith(_WAITING_FOR)


def waiting_for(rank: int) -> str:
    """Return the name of a slice in which other ranks wait for `rank`."""
    return f"{_WAITING_FOR}{rank}"
