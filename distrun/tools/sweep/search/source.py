"""The interface of a source of trials, and of the results that it gets."""

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
    """The end of a trial, as far as it depends on the parameters."""

    number: int
    values: Values
    value: float | None
    """The last value reported. None = there is none, or the trial failed."""
    is_pruned: bool = False
    reports: Sequence[tuple[float, float]] = ()
    """The step and the value of each report."""

    @property
    def is_finite(self) -> bool:
        """Whether there is a finite value."""
        return self.value is not None and math.isfinite(self.value)


class Source(Protocol):
    """Chooses the values of trials."""

    needs_values: bool
    """Whether a trial without a value is useless to this source."""
    total: int | None
    """The total number of trials, including an earlier run's. None = no end."""

    def ask(self, number: int) -> Values | None:
        """Return the values for trial `number`, or None if there are none left."""

    def tell(self, result: Result) -> None:
        """Note the end of a trial."""
