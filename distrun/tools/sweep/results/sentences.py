"""Sentences about trials, for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.results.ranking import best, groups
from distrun.tools.sweep.space.command_line import SEED
from distrun.tools.sweep.space.ranges import Values, shown

_ORDER = (State.COMPLETE, State.PRUNED, State.FAILED, State.RUNNING, State.WAITING)
CUT = "cut short"
"""The state of a trial that the end of its sweep has ended. `--resume` runs it again."""
_MOST_GROUPS = 20  # listed at the end of a sweep: groups of trials that differ only in the seed


def parameters(values: Values) -> str:
    """Return values as text: `lr=0.01 width=32`."""
    return " ".join(f"{name}={shown(value)}" for name, value in values.items())


def counts(trials: Iterable[Trial], is_over: bool = False) -> str:
    """Return the number of trials by state: `4 complete, 1 failed`. `is_over`: the sweep has ended."""
    states = [CUT if is_over and trial.is_begun else trial.state.value for trial in trials]
    order = (*(state.value for state in _ORDER), CUT)
    return ", ".join(f"{states.count(state)} {state}" for state in order if state in states) or "no trial"


def ended(trial: Trial, minimizes: bool, trials: Iterable[Trial]) -> str:
    """Return the sentence about a trial that has just ended."""
    value = "" if trial.value is None else f": {trial.value:.6g}"
    at = "" if trial.step is None else f" at step {trial.step:g}"
    first = best(trials, minimizes)
    comparison = ""
    if first is trial:
        comparison = "; it is the best"
    elif first is not None and first.value is not None:
        comparison = f"; the best is trial {first.number} with {first.value:.6g}"
    tried = f" ({parameters(trial.values)})" if trial.values else ""
    return f"trial {trial.number} {trial.state.value}{value}{at}{tried}, {trial.seconds:.3g} s{comparison}"


def summary(trials: Sequence[Trial], minimizes: bool, where: str) -> list[str]:
    """Return the sentences at the end of a sweep. `where` is a clause about where the results are."""
    lines = [f"{counts(trials, is_over=True)}; {where}"]
    if any(SEED in trial.values for trial in trials):
        for group in groups(trials, minimizes)[:_MOST_GROUPS]:
            if group.mean is not None:
                deviation = "" if group.deviation is None else f" ± {group.deviation:.3g}"
                tried = f" ({parameters(group.values)})" if group.values else ""
                lines.append(f"{group.mean:.6g}{deviation} over {len(group.complete)} seeds{tried}")
    return lines


def best_lines(trial: Trial, command: Sequence[str], ranks: int) -> list[str]:
    """Return the sentences about the best trial."""
    at = "" if trial.step is None else f" at step {trial.step:g}"
    values = f": {parameters(trial.values)}" if trial.values else ""
    return [
        f"the best is trial {trial.number} with {trial.value:.6g}{at}{values}",
        f"its command: {run_line(command, ranks)}",
    ]


def run_line(command: Sequence[str], ranks: int) -> str:
    """Return the command line that runs the command of one trial without a sweep."""
    return shlex.join(["distrun", "-np", str(ranks), *command])
