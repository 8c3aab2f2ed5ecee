"""Which rank's state the others take, at the beginning of a generation.

In synchronous training the weights of all ranks are the same at a step boundary, and change between a step's
collectives and the next boundary only. So a rank whose weights have not changed since its last boundary, a *clean* one,
has a state that training can go on from, though nothing was copied; and the one with the most boundaries has lost
nothing. A survivor is at most one step behind another: no rank can finish a step that another has not begun. A rank
that is not clean goes back to its last commit, if there is one, and is clean by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEW = -1
"""The boundaries of a state that has taken part in no generation."""


@dataclass(frozen=True)
class DonorCandidate:
    """The standing of a rank: what it says about its state."""

    boundaries: int
    """The number of step boundaries that lie behind it; `NEW` of a newcomer."""
    is_clean: bool = True
    """Whether its weights are as they were at the last boundary."""


@dataclass(frozen=True)
class Election:
    """Whose state it is."""

    donor: int
    boundaries: int
    """The boundaries that lie behind all ranks from now on."""
    sends: bool
    """Whether a rank has other tensors than the donor."""
    is_certain: bool = True
    """Whether the donor's state is that of a step boundary."""


def elect(standings: Sequence[DonorCandidate]) -> Election:
    """Return whose state the ranks take, given the standing of each rank.

    The clean rank with the most boundaries; if none is clean, the rank with the most boundaries, in the state it is in.
    The lowest rank among equals.
    """
    ranks = range(len(standings))
    clean = [rank for rank in ranks if standings[rank].is_clean and standings[rank].boundaries > NEW]
    if clean:
        donor = max(clean, key=lambda rank: standings[rank].boundaries)
        best = standings[donor].boundaries
        sends = any(not standing.is_clean or standing.boundaries != best for standing in standings)
        return Election(donor, best, sends)
    # Nobody has begun, or nobody is certain: a rank that has received half of another's state is neither clean nor old.
    donor = max(ranks, key=lambda rank: (standings[rank].boundaries, standings[rank].is_clean))
    best = standings[donor].boundaries
    return Election(donor, max(0, best), sends=True, is_certain=best == NEW)
