"""The end of a sweep: the files with its results are written, and the user learns where they are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from distrun.tools.sweep.policy.trials import Trial
from distrun.tools.sweep.results.ranking import best
from distrun.tools.sweep.results.record import as_json, write_whole
from distrun.tools.sweep.results.sentences import best_lines, run_line, summary
from distrun.tools.sweep.results.study import write_study
from distrun.tools.sweep.space.command_line import Template
from distrun.tools.sweep.space.ranges import plain


def write_results(folder: Path, template: Template, ranks: int, minimizes: bool, trials: Sequence[Trial]) -> list[str]:
    """Write the results. Return sentences for the user, also about anything that could not be written."""
    first = best(trials, minimizes)
    command = [] if first is None else template.command(first.values)
    study = folder / "study.db"
    try:
        _write_best(folder / "best.json", first, command, ranks, minimizes)
        is_there = write_study(study, trials, template, minimizes)
        where = f"all of it is in {folder}"
        if is_there:
            where += f", and optuna-dashboard {shlex.quote(str(study))} shows it"
    except OSError as error:
        where = f"the results cannot be written to {folder}: {error.strerror}"
    except ValueError as error:  # raised by Optuna for numbers that are equal as floats
        where = f"all of it is in {folder}, but no study.db: {error}"
    said = summary(trials, minimizes, where)
    return said if first is None else [*said, *best_lines(first, command, ranks)]


def _write_best(path: Path, trial: Trial | None, command: Sequence[str], ranks: int, minimizes: bool) -> None:
    """Write the best trial to a file atomically, or remove the file if there is none."""
    if trial is None:
        path.unlink(missing_ok=True)
        return
    found = {
        "value": trial.value,
        "direction": "minimize" if minimizes else "maximize",
        "step": as_json(trial.step),
        "trial": trial.number,
        "params": {name: plain(value) for name, value in trial.values.items()},
        "command": list(command),
        "command_line": run_line(command, ranks),
    }
    write_whole(path, json.dumps(found, indent=2) + "\n")
