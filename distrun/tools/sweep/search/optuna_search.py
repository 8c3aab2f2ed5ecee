"""Search by Optuna: the tree-structured Parzen estimator, which also considers running trials, so that several differ.

The study is in memory. When a sweep is resumed, the study is filled from the sweep's record (`results.record`).
`results.study` writes the trials for Optuna's own tools.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from distrun.errors import UsageError
from distrun.tools.sweep.policy.trials import Trial
from distrun.tools.sweep.search import optuna_trials
from distrun.tools.sweep.space.ranges import Range, Values


class OptunaSearch:
    """A source that learns from the results of trials."""

    needs_values = True

    def __init__(
        self,
        parameters: Mapping[str, Range],
        total: int | None,
        minimizes: bool,
        seed: int | None = None,
        finished: Iterable[Trial] = (),
        again: Iterable[Values] = (),
    ) -> None:
        """
        Args:
            parameters: the ranges.
            total: the number of trials, including an earlier run's. None = no end.
            minimizes: whether small values are good.
            seed: makes the choices the same each time, if trials end in the same order. None = they differ.
            finished: the trials of an earlier run.
            again: the values of trials that an earlier run has not finished, which are tried first.

        Raises:
            UsageError: Optuna is not installed.
        """
        self.total = total
        optuna = _import_optuna()
        self._distributions = optuna_trials.distributions(parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that constant_liar is experimental
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        direction = "minimize" if minimizes else "maximize"
        self._study = optuna.create_study(direction=direction, sampler=sampler)
        self._running: dict[int, Any] = {}
        self._asked = 0
        for trial in finished:
            self._study.add_trial(optuna_trials.frozen(trial, self._distributions, {}))
            self._asked += 1
        for values in again:
            self._study.enqueue_trial(dict(values))

    def ask(self, number: int) -> Values | None:
        """Return the values of the next trial."""
        if self.total is not None and self._asked >= self.total:
            return None
        self._asked += 1
        trial = self._running[number] = self._study.ask(self._distributions)
        return dict(trial.params)

    def tell(self, trial: Trial) -> None:
        """Note the end of a trial."""
        asked = self._running.pop(trial.number)
        for number, value in optuna_trials.kept_reports(trial).items():
            asked.report(value, number)
        self._study.tell(asked, *optuna_trials.ending(trial))


def _import_optuna() -> ModuleType:
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise UsageError(
            "searching needs Optuna, which is not installed: run pip install 'distrun[sweep]', or try all combinations "
            "with --grid"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
