"""Fragments: consecutive parameters that are exchanged together, of about equal size, and the schedule of exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from distrun.errors import UsageError


@dataclass(frozen=True)
class Fragment:
    """Consecutive parameters, and their sizes in a flat array of them."""

    places: range
    """The indices of the parameters in the list of all."""
    sizes: tuple[int, ...]
    """The number of elements of each."""

    @property
    def count(self) -> int:
        """The number of elements of all."""
        return sum(self.sizes)

    def parts(self, flat: Any) -> list[Any]:
        """Return a view of each parameter's part of the flat array."""
        starts = list(accumulate(self.sizes, initial=0))
        return [flat[start : start + size] for start, size in zip(starts, self.sizes, strict=False)]


def divide(sizes: Sequence[int], count: int) -> list[Fragment]:
    """Return `count` non-empty fragments of parameters with `sizes` elements.

    A fragment ends with the parameter that brings the sum closest to its share.

    Raises:
        UsageError: there are fewer parameters than fragments.
    """
    if count > len(sizes):
        raise UsageError(
            f"fragments={count} is more than the {len(sizes)} parameters that there are to divide: give at most as "
            "many fragments as parameters"
        )
    sums = list(accumulate(sizes, initial=0))
    found: list[Fragment] = []
    start = 0
    for number in range(1, count + 1):
        share = sums[-1] * number / count
        ends = range(start + 1, len(sizes) - (count - number) + 1)  # each later fragment needs a parameter
        stop = len(sizes) if number == count else min(ends, key=lambda end: abs(sums[end] - share))
        found.append(Fragment(range(start, stop), tuple(sizes[start:stop])))
        start = stop
    return found


MOST_DELAY = 10
"""The most inner steps until an average is used: older averages are less useful."""


class Schedule:
    """Which fragment is due after which inner step, and when its average is used.

    Fragments are due in turn, at equal intervals, each once in `every` steps. This depends on the number of the step
    only, so all ranks know it without communication.
    """

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
