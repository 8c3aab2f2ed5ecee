"""The schedule of outer steps: which fragment is due after which inner step, and when its average is used.

It follows from the number of the step alone, so that all ranks know it without asking each other.
"""

from __future__ import annotations

MOST_DELAY = 10
"""The most inner steps for which an average that travels is waited for: older ones are worth less."""


class Schedule:
    """Fragments that are due in turn, at equal distances: each of them once in so many steps."""

    def __init__(self, every: int, fragments: int, warmup: int = 0) -> None:
        """`every` is the number of steps after which a fragment is due again, at least that of `fragments`; the first
        `warmup` steps do not count."""
        self._every = every
        self._warmup = warmup
        self._places = [(fragment + 1) * every // fragments for fragment in range(fragments)]
        self._fragments = {place % every: fragment for fragment, place in enumerate(self._places)}

    def due(self, step: int) -> int | None:
        """Return the fragment that is to be exchanged when `step` inner steps are done; None if there is none."""
        step -= self._warmup
        return self._fragments.get(step % self._every) if step > 0 else None

    def delay(self, fragment: int) -> int:
        """Return the inner steps between the exchange of a fragment and the use of its average, if they overlap.

        The average is used no later than when the next fragment is due, so that one travels at a time.
        """
        later = [*self._places[fragment + 1 :], self._every + self._places[0]]
        return min(later[0] - self._places[fragment], MOST_DELAY)
