"""The interface of a source of trials, and what it is told of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from distrun.tools.sweep.space.ranges import Value

Values = Mapping[str, Value]
"""The values of a trial's parameters, by name."""


@dataclass(frozen=True)
class Result:
    """The end of a trial, as far as it says something about its parameters."""

    number: int
    values: Values
    value: float | None
    """The last value reported; None: there is none, or the trial failed."""
    is_pruned: bool = False
    reports: Sequence[tuple[float, float]] = ()
    """All steps with the values reported."""

    @property
    def is_finite(self) -> bool:
        """Whether there is a value that is a number."""
        return self.value is not None and math.isfinite(self.value)


class Source(Protocol):
    """Chooses the values of trials."""

    needs_values: bool
    """Whether a trial without a value is of no use."""
    total: int | None
    """The number of trials that there are to be, those of an earlier run included. None = no end."""

    def ask(self, number: int) -> Values | None:
        """Return the values of the trial of this number; None: there are no more."""

    def tell(self, result: Result) -> None:
        """Note the end of a trial."""
