"""Search by Optuna: the tree-structured Parzen estimator, told of running trials, so that several differ.

The study is in memory. Its record is that of the sweep (`results.record`), from which it is filled when a sweep is
resumed; `export` writes it for Optuna's own tools.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from distrun.errors import UsageError
from distrun.tools.sweep.search.source import Result, Values
from distrun.tools.sweep.space.ranges import Choices, Integers, Range

_MOST_REPORTS = 1000  # of a trial that Optuna is told of: it copies them all at each


class OptunaSearch:
    """A source that learns."""

    needs_values = True

    def __init__(
        self,
        parameters: Mapping[str, Range],
        total: int | None,
        minimizes: bool,
        seed: int | None = None,
        finished: Iterable[Result] = (),
        again: Iterable[Values] = (),
    ) -> None:
        """
        Args:
            parameters: the ranges.
            total: the number of trials, those of an earlier run included; None = no end.
            minimizes: whether small values are good.
            seed: makes the choices the same each time, if trials end in the same order; None = they differ.
            finished: the trials of an earlier run.
            again: the values of those that were running when it ended, which are tried first.

        Raises:
            UsageError: Optuna is not installed.
        """
        self.total = total
        self._optuna = _import_optuna()
        self._distributions = {name: self._distribution(values) for name, values in parameters.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that constant_liar is experimental
            sampler = self._optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        direction = "minimize" if minimizes else "maximize"
        self._study = self._optuna.create_study(direction=direction, sampler=sampler)
        self._running: dict[int, Any] = {}
        self._asked = 0
        for result in finished:
            self._study.add_trial(self._frozen(result))
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

    def tell(self, result: Result) -> None:
        """Note the end of a trial. One that diverged counts as pruned: as worse than all others."""
        trial = self._running.pop(result.number)
        for number, value in _kept(result).items():
            trial.report(value, number)
        self._study.tell(trial, *self._ending(result))

    def export(self, path: Path) -> None:
        """Write the study to a file of Optuna's journal, in the place of one that is there.

        `optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend(path)))` reads it, and so does
        `optuna-dashboard`.
        """
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        draft = path.with_name(f".{path.name}")
        for left in (draft, draft.with_name(f"{draft.name}.lock")):  # by a launcher that was killed while it wrote
            left.unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            storage = JournalStorage(JournalFileBackend(str(draft)))
        copy = self._optuna.create_study(study_name="sweep", storage=storage, direction=self._study.direction)
        copy.add_trials(self._study.get_trials(deepcopy=False))
        os.replace(draft, path)

    def _distribution(self, values: Range) -> Any:
        kinds = self._optuna.distributions
        if isinstance(values, Choices):
            return kinds.CategoricalDistribution(values.values)
        if isinstance(values, Integers):
            step = values.step
            last = values.high - (values.high - values.low) % step  # as Optuna would, with a warning
            return kinds.IntDistribution(values.low, last, log=values.is_log, step=step)
        if values.step is not None:
            high = float((values.listed() or [values.high])[-1])
            return kinds.FloatDistribution(values.low, high, step=values.step)
        return kinds.FloatDistribution(values.low, values.high, log=values.is_log)

    def _ending(self, result: Result) -> tuple[float | None, Any]:
        states = self._optuna.trial.TrialState
        if result.is_pruned or (result.value is not None and not result.is_finite):
            return None, states.PRUNED
        return (None, states.FAIL) if result.value is None else (result.value, states.COMPLETE)

    def _frozen(self, result: Result) -> Any:
        value, state = self._ending(result)
        finite = _kept(result)
        if state is self._optuna.trial.TrialState.PRUNED and finite:
            value = list(finite.values())[-1]
        return self._optuna.create_trial(
            state=state,
            value=value,
            params=dict(result.values),
            distributions=self._distributions,
            intermediate_values=finite,
        )


def _kept(result: Result) -> dict[int, float]:
    """Return the finite values that a trial reported, by number: of very many some, and the last."""
    finite = [(number, value) for number, (_, value) in enumerate(result.reports) if math.isfinite(value)]
    return dict(finite[:: 1 + len(finite) // _MOST_REPORTS] + finite[-1:])


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
