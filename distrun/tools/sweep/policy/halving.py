"""Pruning by asynchronous successive halving: at each rung, only the best part of the trials continues.

L. Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020. As in Optuna, no trial waits at a rung:
it is compared with the trials that have reached the rung before.

Optuna's pruners are not used. So grids can be pruned too, and the answer to a report waits for no sampler. Optuna is
given the reports of pruned trials.
"""

from __future__ import annotations

import math


class Halving:
    """The values at the rungs, and the decisions which trials continue."""

    def __init__(self, minimizes: bool, factor: int = 3, first: int = 2) -> None:
        """
        Args:
            minimizes: whether small values are good.
            factor: one of this many trials continues at each rung.
            first: the number of reports at the first rung. Each rung has `factor` times as many as the previous one.
        """
        self._sign = 1.0 if minimizes else -1.0
        self._factor = factor
        self._first = first
        self._rungs: dict[int, dict[int, float]] = {}  # reports -> trial -> loss

    def judge(self, trial: int, reports: int, value: float) -> bool:
        """Return whether a trial goes on after so many reports. It ends if the last value is NaN or infinite."""
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
        """Forget a trial that starts again from the beginning."""
        for rung in self._rungs.values():
            rung.pop(trial, None)

    def _is_rung(self, reports: int) -> bool:
        rung = self._first
        while rung < reports:
            rung *= self._factor
        return rung == reports
