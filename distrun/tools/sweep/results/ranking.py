"""The ranking of trials, from the best to the worst, and of groups of trials that differ only in the seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.space.command_line import SEED
from distrun.tools.sweep.space.ranges import Values


@dataclass(frozen=True)
class Group:
    """Trials with the same values, except for the seed."""

    values: Values
    trials: tuple[Trial, ...]

    @property
    def complete(self) -> list[float]:
        """The results of the complete trials that did not diverge."""
        return [value for trial in self.trials if (value := trial.outcome) is not None]

    @property
    def mean(self) -> float | None:
        """The mean of these results, or None if there are none."""
        return statistics.mean(self.complete) if self.complete else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation of these results, or None if there are fewer than two."""
        return statistics.stdev(self.complete) if len(self.complete) > 1 else None


def ranked(trials: Iterable[Trial], minimizes: bool) -> list[Trial]:
    """Return trials, best first: complete ones, running ones, pruned ones, each by value, then trials without one."""
    order = {State.COMPLETE: 0, State.RUNNING: 1, State.PRUNED: 2, State.FAILED: 3, State.WAITING: 4}

    def key(trial: Trial) -> tuple[bool, int, float, int]:
        value = trial.value
        is_finite = value is not None and math.isfinite(value) and trial.state is not State.FAILED
        loss = (value or 0.0) * (1 if minimizes else -1) if is_finite else 0.0
        return not is_finite, order[trial.state], loss, trial.number

    return sorted(trials, key=key)


def best(trials: Iterable[Trial], minimizes: bool) -> Trial | None:
    """Return the best complete trial, or None if none has a finite value."""
    sign = 1 if minimizes else -1
    found = ((sign * value, trial.number, trial) for trial in trials if (value := trial.outcome) is not None)
    return min(found, default=(None, None, None))[2]


def groups(trials: Iterable[Trial], minimizes: bool) -> list[Group]:
    """Return the groups of trials that differ only in the seed, the best mean first."""
    found: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in trials:
        key = tuple((name, str(value)) for name, value in trial.values.items() if name != SEED)
        found.setdefault(key, []).append(trial)
    made = [
        Group({name: value for name, value in of[0].values.items() if name != SEED}, tuple(of)) for of in found.values()
    ]
    sign = 1 if minimizes else -1
    return sorted(made, key=lambda group: (group.mean is None, sign * (group.mean or 0.0)))
