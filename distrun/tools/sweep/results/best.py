"""The best trial as a file: `best.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from distrun.tools.sweep.policy.trials import Trial
from distrun.tools.sweep.results.record import as_json, write_whole
from distrun.tools.sweep.results.sentences import run_line
from distrun.tools.sweep.space.ranges import plain


def write_best(folder: Path, trial: Trial | None, command: Sequence[str], ranks: int, minimizes: bool) -> None:
    """Write the file atomically, or remove it if there is no best trial."""
    path = folder / "best.json"
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
