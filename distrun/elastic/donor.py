"""The choice of the donor: the rank whose state all ranks take at the start of a generation.

In synchronous training the weights of all ranks are the same at a step boundary, and they change only between a step's
collectives and the next boundary. So a rank whose weights have not changed since its last boundary is *clean*: training
can continue from its state, although nothing was copied. The clean rank with the most boundaries has lost nothing. A
survivor is at most one step behind another, because no rank can finish a step that another has not begun. A rank that
is not clean goes back to its last commit, if there is one, and then is clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NEW = -1
"""The number of boundaries of a state that has not taken part in a generation."""


@dataclass(frozen=True)
class DonorCandidate:
    """A rank, by the facts about its state that it sends to the others."""

    boundaries: int
    """The number of step boundaries that it has passed, or `NEW` for a newcomer."""
    is_clean: bool = True
    """Whether its weights are as they were at the last boundary."""


@dataclass(frozen=True)
class Election:
    """The result of choosing the rank whose state all ranks load."""

    donor: int
    boundaries: int
    """The number of boundaries that all ranks have passed once they have the donor's state."""
    sends: bool
    """Whether the tensors of some rank differ from the donor's, so that they are sent."""
    is_certain: bool = True
    """Whether the donor's state belongs to a step boundary."""


def elect(standings: Sequence[DonorCandidate]) -> Election:
    """Return the donor, given a candidate for each rank.

    It is the clean rank with the most boundaries. If no rank is clean, it is the rank with the most boundaries, in the
    state that it is in. Among equals it is the lowest rank.
    """
    ranks = range(len(standings))
    clean = [rank for rank in ranks if standings[rank].is_clean and standings[rank].boundaries > NEW]
    if clean:
        donor = max(clean, key=lambda rank: standings[rank].boundaries)
        best = standings[donor].boundaries
        sends = any(not standing.is_clean or standing.boundaries != best for standing in standings)
        return Election(donor, best, sends)
    # All ranks are new, or no rank is clean. A rank that has received only half of another's state is not clean, and
    # its boundaries are those from before.
    donor = max(ranks, key=lambda rank: (standings[rank].boundaries, standings[rank].is_clean))
    best = standings[donor].boundaries
    return Election(donor, max(0, best), sends=True, is_certain=best == NEW)
