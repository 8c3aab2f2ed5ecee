"""The schedule of outer steps: which fragment is due after which inner step, and when its average is used.

It depends on the number of the step only, so all ranks know it without communication.
"""

from __future__ import annotations

MOST_DELAY = 10
"""The most inner steps until an average is used: older averages are less useful."""


class Schedule:
    """Fragments that are due in turn, at equal intervals, each once in `every` steps."""

    def __init__(self, every: int, fragments: int, warmup: int = 0) -> None:
        """`every` is the number of steps until a fragment is due again, at least `fragments`. The first `warmup` steps
        do not count."""
        self._every = every
        self._warmup = warmup
        self._places = [(fragment + 1) * every // fragments for fragment in range(fragments)]
        self._fragments = {place % every: fragment for fragment, place in enumerate(self._places)}

    def due(self, step: int) -> int | None:
        """Return the fragment to exchange after `step` inner steps, or None."""
        step -= self._warmup
        return self._fragments.get(step % self._every) if step > 0 else None

    def delay(self, fragment: int) -> int:
        """Return the inner steps between the start of a fragment's exchange and the use of its average, if they
        overlap.

        The average is used at the latest when the next fragment is due, so only one exchange is under way at a time.
        """
        later = [*self._places[fragment + 1 :], self._every + self._places[0]]
        return min(later[0] - self._places[fragment], MOST_DELAY)
