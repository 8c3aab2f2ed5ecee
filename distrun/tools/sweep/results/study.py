"""The trials as a study of Optuna, `study.db`: `optuna-dashboard` shows it, and Optuna's other tools read it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.results.record import as_json
from distrun.tools.sweep.results.sentences import CUT
from distrun.tools.sweep.search import optuna_trials
from distrun.tools.sweep.space.command_line import Template


def write_study(path: Path, trials: Sequence[Trial], template: Template, minimizes: bool) -> bool:
    """Write all trials to a file in the format of Optuna's journal, which replaces an existing one.

    `optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend(path)))` reads it, and so does
    `optuna-dashboard`.

    Returns:
        Whether it was written. Without Optuna, which grids and seeds do not need, it is not.

    Raises:
        OSError: it cannot be written.
        ValueError: Optuna refuses a value because as a float it equals the next one.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        return False
    spaces = optuna_trials.distributions(template.parameters)
    copies = [_copy(trial, template, spaces) for trial in sorted(trials, key=lambda trial: trial.number)]
    draft = path.with_name(f".{path.name}")
    for left in (draft, draft.with_name(f"{draft.name}.lock")):  # left by a launcher that was killed while writing
        left.unlink(missing_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = JournalStorage(JournalFileBackend(str(draft)))
    direction = optuna.study.StudyDirection.MINIMIZE if minimizes else optuna.study.StudyDirection.MAXIMIZE
    optuna.create_study(study_name="sweep", storage=storage, direction=direction).add_trials(copies)
    os.replace(draft, path)
    return True


def _copy(trial: Trial, template: Template, spaces: Mapping[str, Any]) -> Any:
    """Return a trial in Optuna's form, with its other facts as attributes."""
    import optuna

    if trial.state in (State.WAITING, State.RUNNING):
        waiting = optuna.trial.TrialState.WAITING
        attributes = {"trial": trial.number, **({"state": CUT} if trial.is_begun else {})}
        return optuna.create_trial(
            state=waiting, params=dict(trial.values), distributions=dict(spaces), user_attrs=attributes
        )
    said = {
        "trial": trial.number,
        "state": trial.state.value,
        "step": as_json(trial.step),
        "hosts": ", ".join(trial.hosts),
        "command": template.command(trial.values),
        "story": trial.failure_text,
    }
    copy = optuna_trials.frozen(trial, spaces, {name: value for name, value in said.items() if value not in (None, "")})
    ran = timedelta(seconds=trial.seconds)
    if trial.began:  # it ran in this process: trials from the record have no dates
        copy.datetime_start = datetime.now() - timedelta(seconds=time.monotonic() - trial.began)
    else:
        copy.datetime_start -= ran
    copy.datetime_complete = copy.datetime_start + ran
    return copy
