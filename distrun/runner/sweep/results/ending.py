"""The end of a sweep: the files with its results are written, and it is said where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distrun.runner.sweep.policy.trials import Trial
from distrun.runner.sweep.results.best import write_best
from distrun.runner.sweep.results.sentences import best_lines, summary
from distrun.runner.sweep.results.standing import best
from distrun.runner.sweep.search.source import Source
from distrun.runner.sweep.space.command_line import Template


@dataclass(frozen=True)
class Ending:
    """The files that are written at the end."""

    folder: Path
    template: Template
    ranks: int
    minimizes: bool

    def write(self, trials: Sequence[Trial], source: Source) -> list[str]:
        """Write the results; return what to tell the user, also of what could not be written."""
        from distrun.runner.sweep.results.page import page

        first = best(trials, self.minimizes)
        command = [] if first is None else self.template.command(first.values)
        try:
            write_best(self.folder, first, command, self.ranks, self.minimizes)
            (self.folder / "index.html").write_text(page(trials, self.template, self.ranks, self.minimizes))
            source.export(self.folder / "study.db")
        except OSError as error:
            return [f"the results cannot be written to {self.folder}: {error.strerror}"]
        said = summary(trials, self.minimizes, str(self.folder))
        return said if first is None else [*said, *best_lines(first, command, self.ranks)]
