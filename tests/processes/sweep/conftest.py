"""Fixtures for tests of sweeps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


class Results:
    """The folder of a sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def trials(self) -> dict[int, dict]:
        """The last line of each trial."""
        lines = (self.folder / "trials.jsonl").read_text().splitlines()
        return {entry["trial"]: entry for entry in map(json.loads, lines)}

    @property
    def states(self) -> list[str]:
        """The states of all trials, sorted."""
        return sorted(entry["state"] for entry in self.trials.values())

    @property
    def best(self) -> dict:
        return json.loads((self.folder / "best.json").read_text())

    @property
    def study(self):
        """The study, as optuna-dashboard loads it."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        backend = JournalFileBackend(str(self.folder / "study.db"))
        return optuna.load_study(study_name="sweep", storage=JournalStorage(backend))

    def log(self, trial: int) -> str:
        return (self.folder / "logs" / f"trial-{trial}.log").read_text()


@pytest.fixture
def sweep(distrun, tmp_path):
    """Starts `distrun sweep` on a script given as text, with its results in a folder of the test."""

    def start(*arguments, script=None, command=()):
        words = command
        if script is not None:
            path = tmp_path / "script.py"
            path.write_text(script)
            words = [sys.executable, str(path), *words]
        folder = () if "--resume" in arguments else ("--output", str(tmp_path / "results"))
        launched = distrun("sweep", *folder, *arguments, *words)
        launched.results = Results(tmp_path / "results")
        return launched

    return start
