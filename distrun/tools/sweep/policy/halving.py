"""Pruning by asynchronous successive halving: at each rung, only the best part of the trials goes on.

L. Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020; as in Optuna, nobody waits at a rung:
a trial is compared with those that have come to it before.

Optuna's pruners are not used. So grids can be pruned too, and the answer to a report waits for no sampler. Optuna is
given the reports of pruned trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class Halving:
    """Remembers the values at the rungs, and judges who goes on."""

    def __init__(self, minimizes: bool, factor: int = 3, first: int = 2) -> None:
        """
        Args:
            minimizes: whether small values are good.
            factor: one of so many goes on at each rung.
            first: the number of reports at the first rung; each next one is at `factor` times as many.
        """
        self._sign = 1.0 if minimizes else -1.0
        self._factor = factor
        self._first = first
        self._rungs: dict[int, dict[int, float]] = {}  # reports -> trial -> loss

    def judge(self, trial: int, reports: int, value: float) -> bool:
        """Return whether a trial goes on after so many reports, of which this is the last.

        A value that is no number, or infinite, is worse than all others: such a trial ends at once.
        """
        if not math.isfinite(value):
            return False
        if not self._is_rung(reports):
            return True
        loss = self._sign * value
        rung = self._rungs.setdefault(reports, {})
        rung[trial] = loss
        better = sum(other < loss for other in rung.values())
        return better < max(1, len(rung) // self._factor)

    def forget(self, trial: int) -> None:
        """Forget a trial that is tried again from the beginning."""
        for rung in self._rungs.values():
            rung.pop(trial, None)

    def remember(self, trial: int, values: Iterable[float]) -> None:
        """Note the values of a trial of an earlier run."""
        for reports, value in enumerate(values, start=1):
            self.judge(trial, reports, value)

    def _is_rung(self, reports: int) -> bool:
        rung = self._first
        while rung < reports:
            rung *= self._factor
        return rung == reports
