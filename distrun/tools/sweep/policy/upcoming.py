"""The next trials: trials that are tried again, and new ones, whose values the source chooses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.space.ranges import Values


class Source(Protocol):
    """Chooses the values of trials."""

    needs_values: bool
    """Whether a trial without a value is useless to this source."""
    total: int | None
    """The total number of trials, including an earlier run's. None = no end."""

    def ask(self, number: int) -> Values | None:
        """Return the values for trial `number`, or None if there are none left."""

    def tell(self, trial: Trial) -> None:
        """Note the end of a trial."""


class Upcoming:
    """Returns one trial after another, and keeps all of them."""

    def __init__(self, source: Source, earlier: Sequence[Trial]) -> None:
        """Args: what chooses the values of trials, and the trials that an earlier run of the sweep has finished."""
        self.trials: dict[int, Trial] = {trial.number: trial for trial in earlier}
        """All trials so far, by number."""
        self._source = source
        self._numbers: Iterator[int] = (number for number in itertools.count() if number not in self.trials)
        self._again: list[Trial] = []
        self._is_exhausted = False

    @property
    def is_over(self) -> bool:
        """Whether no trial is waiting and the source has no more. One that runs may still have to be tried again."""
        return self._is_exhausted and not self._again

    def next(self) -> Trial | None:
        """Return the next trial. None: there is none at present."""
        if self._again:
            return self._again.pop(0)
        if self._is_exhausted:
            return None
        number = next(self._numbers)
        values = self._source.ask(number)
        if values is None:
            self._is_exhausted = True
            return None
        trial = self.trials[number] = Trial(number, values)
        return trial

    def put_back(self, trial: Trial) -> None:
        """Let a trial be tried again, before new ones."""
        trial.state = State.WAITING
        self._again.append(trial)
