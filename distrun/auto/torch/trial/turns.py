"""Which steps are tried: the first of an optimizer, then fewer and fewer.

No clock decides. Ranks draw other random numbers in a step that is tried, so a script that is run again with the same
seeds must have the same steps tried to end with the same weights.
"""

from __future__ import annotations

_CLOSE = 16  # batches, of which the 1st, 2nd, 4th, 8th and 16th are tried on any number of ranks
_SHORTEST, _LONGEST = 10, 100  # times the number of ranks: distances after these, as a trial takes a step for each rank
_FARTHEST = 2000  # batches; distances may double to this even on few ranks


class Turns:
    """Counts the batches of a training loop."""

    def __init__(self) -> None:
        self._batches = 0
        self._next = 1

    def comes(self, is_new: bool, size: int) -> bool:
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
