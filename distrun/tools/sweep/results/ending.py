"""The end of a sweep: the files with its results are written, and the user learns where they are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distrun.tools.sweep.policy.trials import Trial
from distrun.tools.sweep.results.best import write_best
from distrun.tools.sweep.results.ranking import best
from distrun.tools.sweep.results.sentences import best_lines, summary
from distrun.tools.sweep.results.study import write_study
from distrun.tools.sweep.space.command_line import Template


@dataclass(frozen=True)
class Ending:
    """The files that are written at the end."""

    folder: Path
    template: Template
    ranks: int
    minimizes: bool

    def write(self, trials: Sequence[Trial]) -> list[str]:
        """Write the results. Return sentences for the user, also about anything that could not be written."""
        first = best(trials, self.minimizes)
        command = [] if first is None else self.template.command(first.values)
        said = summary(trials, self.minimizes, self._written(trials, first, command))
        return said if first is None else [*said, *best_lines(first, command, self.ranks)]

    def _written(self, trials: Sequence[Trial], first: Trial | None, command: Sequence[str]) -> str:
        """Write the files. Return a clause about where they are, or why they could not be written."""
        study = self.folder / "study.db"
        try:
            write_best(self.folder, first, command, self.ranks, self.minimizes)
            is_there = write_study(study, trials, self.template, self.minimizes)
        except OSError as error:
            return f"the results cannot be written to {self.folder}: {error.strerror}"
        except ValueError as error:  # raised by Optuna for numbers that are equal as floats
            return f"all of it is in {self.folder}, but no study.db: {error}"
        shows = f", and optuna-dashboard {shlex.quote(str(study))} shows it" if is_there else ""
        return f"all of it is in {self.folder}{shows}"
