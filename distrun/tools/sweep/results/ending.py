"""The end of a sweep: the files with its results are written, and it is said where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distrun.tools.sweep.policy.trials import Trial
from distrun.tools.sweep.results.best import write_best
from distrun.tools.sweep.results.record import write_whole
from distrun.tools.sweep.results.sentences import best_lines, summary
from distrun.tools.sweep.results.standing import best
from distrun.tools.sweep.search.source import Source
from distrun.tools.sweep.space.command_line import Template


@dataclass(frozen=True)
class Ending:
    """The files that are written at the end."""

    folder: Path
    template: Template
    ranks: int
    minimizes: bool

    def write(self, trials: Sequence[Trial], source: Source) -> list[str]:
        """Write the results; return what to tell the user, also of what could not be written."""
        first = best(trials, self.minimizes)
        command = [] if first is None else self.template.command(first.values)
        said = summary(trials, self.minimizes, self._written(trials, first, command, source))
        return said if first is None else [*said, *best_lines(first, command, self.ranks)]

    def _written(self, trials: Sequence[Trial], first: Trial | None, command: Sequence[str], source: Source) -> str:
        """Write the files; return where they are, or why they are not."""
        from distrun.tools.sweep.results.page import page

        try:
            write_best(self.folder, first, command, self.ranks, self.minimizes)
            write_whole(self.folder / "index.html", page(trials, self.template, self.ranks, self.minimizes))
            source.export(self.folder / "study.db")
        except OSError as error:
            return f"the results cannot be written to {self.folder}: {error.strerror}"
        return f"all of it is in {self.folder}/index.html"
