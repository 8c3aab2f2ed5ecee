"""The ranges of parameters and the ends of trials in Optuna's forms. Optuna is imported when a function is called."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.space.ranges import Choices, Integers, Range

_MOST_REPORTS = 1000  # of a trial that are passed to Optuna, which copies all of them with each report


def distributions(parameters: Mapping[str, Range]) -> dict[str, Any]:
    """Return Optuna's distributions for the ranges of parameters."""
    return {name: _distribution(values) for name, values in parameters.items()}


def ending(trial: Trial) -> tuple[float | None, Any]:
    """Return the value and the state of a trial. One that diverged counts as pruned, so as worse than all others."""
    from optuna.trial import TrialState

    value = None if trial.state is State.FAILED else trial.value
    if trial.state is State.PRUNED or (value is not None and not math.isfinite(value)):
        return None, TrialState.PRUNED
    return value, TrialState.FAIL if value is None else TrialState.COMPLETE


def frozen(trial: Trial, spaces: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Return a trial that has ended, for a study, with the distributions of its parameters and other facts by name."""
    import optuna

    value, state = ending(trial)
    finite = kept_reports(trial)
    if state is optuna.trial.TrialState.PRUNED and finite:
        value = list(finite.values())[-1]
    return optuna.create_trial(
        state=state,
        value=value,
        params=dict(trial.values),
        distributions=dict(spaces),
        intermediate_values=finite,
        user_attrs=dict(attributes),
    )


def kept_reports(trial: Trial) -> dict[int, float]:
    """Return the finite values that a trial reported, by number. If there are very many: a sample, and the last."""
    finite = [(number, value) for number, (_, value) in enumerate(trial.reports) if math.isfinite(value)]
    return dict(finite[:: 1 + len(finite) // _MOST_REPORTS] + finite[-1:])


def _distribution(values: Range) -> Any:
    from optuna import distributions as kinds

    if isinstance(values, Choices):
        return kinds.CategoricalDistribution(values.values)
    if isinstance(values, Integers):
        step = values.step
        last = values.high - (values.high - values.low) % step  # Optuna would do the same, with a warning
        return kinds.IntDistribution(values.low, last, log=values.is_log, step=step)
    if values.step is not None:
        high = float((values.listed() or [values.high])[-1])
        return kinds.FloatDistribution(values.low, high, step=values.step)
    return kinds.FloatDistribution(values.low, values.high, log=values.is_log)
