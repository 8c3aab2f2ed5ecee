"""The views of a running sweep: a table at the bottom of a terminal, or without one a line for each trial."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.results.ranking import ranked
from distrun.tools.sweep.results.sentences import counts, ended
from distrun.tools.sweep.space.ranges import shown

if TYPE_CHECKING:
    from distrun.runner.output.panel import Panel

_LINE_EVERY = 30.0  # seconds
_PAINT_EVERY = 0.25  # seconds
_MOST_PART = 0.6  # of the terminal's height: the most that the table takes
_NUMBERS = (0, 2, 3, 4)
"""The places of the columns that are numbers: trial, value, step and time."""
_EXPENDABLE = (3, 4, 1)
"""The places of the columns that, after the hosts, are left out first where a terminal has no room for all."""
_COLOURS = {State.COMPLETE: "green", State.RUNNING: "cyan", State.PRUNED: "yellow", State.FAILED: "red"}


class View:
    """A way to show a sweep: this one, that of `--quiet`, shows nothing."""

    due = float("inf")
    """The time for the next call of `see`, if nothing happens before."""

    def see(self, trials: Mapping[int, Trial], now: float) -> None:
        """Show the trials, if it is time."""

    def ended(self, trial: Trial, trials: Mapping[int, Trial]) -> None:
        """Report a trial that has ended."""

    def end(self) -> None:
        """Remove the view from the terminal."""


class PlainTable(View):
    """The view without a terminal: a line for each trial that ends, and one every 30 s."""

    def __init__(self, say: Callable[[str], None], minimizes: bool, total: int | None, now: float) -> None:
        """Args: prints for the user, whether small values are good, the number of trials (None = no end), the time."""
        self.due = now + _LINE_EVERY
        self._say = say
        self._minimizes = minimizes
        self._of = "" if total is None else f" of {total}"

    def see(self, trials: Mapping[int, Trial], now: float) -> None:
        """Print the number of trials by state, if it is time."""
        if now >= self.due:
            self.due = now + _LINE_EVERY
            self._say(f"{len(trials)}{self._of} trials: {counts(trials.values())}")

    def ended(self, trial: Trial, trials: Mapping[int, Trial]) -> None:
        """Print a sentence about a trial that has ended."""
        self._say(ended(trial, self._minimizes, trials.values()))


class Screen(View):
    """The view in a terminal: a table, best first."""

    def __init__(self, panel: Panel, minimizes: bool, total: int | None, now: float) -> None:
        """Args: the panel, whether small values are good, the number of trials (None = no end), the time."""
        self.due = now
        self._panel = panel
        self._minimizes = minimizes
        self._of = "" if total is None else f" of {total}"

    def see(self, trials: Mapping[int, Trial], now: float) -> None:
        """Show the table, if it is time."""
        if now >= self.due:
            self.due = now + _PAINT_EVERY
            title = f"{len(trials)}{self._of} trials: {counts(trials.values())}"
            self._panel.show(lines(ranked(trials.values(), self._minimizes), title, *self._panel.size, now))

    def end(self) -> None:
        """Remove the table."""
        self._panel.show(())


def lines(trials: Sequence[Trial], title: str, columns: int, rows: int, now: float) -> list[str]:
    """Return the lines of the table of trials, best first, with their colours, for a terminal of this size."""
    from io import StringIO

    from rich import box
    from rich.console import Console
    from rich.table import Table

    chosen = _shown(trials, max(3, int(rows * _MOST_PART) - 4))
    names = list(dict.fromkeys(name for trial in trials for name in trial.values))
    titles = ["trial", "state", "value", "step", "time", *names, "host"]
    cells = [_cells(trial, names, now) for trial in chosen]
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.padding = (0, 1, 0, 0)
    places, titles = _fitting(titles, cells, columns)
    for place, name in zip(places, titles, strict=True):
        table.add_column(name, no_wrap=True, justify="right" if place in _NUMBERS else "left")
    for trial, row in zip(chosen, cells, strict=True):
        table.add_row(*(row[place] for place in places), style=_COLOURS.get(trial.state, ""))
    console = Console(
        file=StringIO(),
        force_terminal=True,
        width=max(20, columns),
        color_system=None if os.environ.get("NO_COLOR") else "standard",
        markup=False,  # a choice may be written as [/a] or :fire:
        emoji=False,
    )
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n").split("\n")


def _cells(trial: Trial, names: Sequence[str], now: float) -> list[str]:
    """Return the row of a trial. `names` are the parameters."""
    seconds = now - trial.began if trial.state is State.RUNNING else trial.seconds
    return [
        str(trial.number),
        trial.state.value,
        "" if trial.value is None else f"{trial.value:.5g}",
        "" if trial.step is None else f"{trial.step:g}",
        f"{seconds:.0f} s",
        *(shown(trial.values.get(name, "")) for name in names),
        ",".join(trial.hosts),
    ]


def _fitting(titles: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> tuple[list[int], list[str]]:
    """Return the places of the columns that a terminal has room for, and their titles, short ones if it must be."""
    texts = [max((len(row[place]) for row in rows), default=0) for place in range(len(titles))]
    widths = [max(len(title), text) + 2 for title, text in zip(titles, texts, strict=True)]
    places = list(range(len(titles)))
    for place in (places[-1], *_EXPENDABLE):
        if sum(widths[place] for place in places) > columns:
            places.remove(place)
    if sum(widths[place] for place in places) <= columns:
        return places, [titles[place] for place in places]
    most = [max(3, texts[place]) for place in places]
    return places, [
        titles[place] if len(titles[place]) <= width else f"{titles[place][: width - 1]}…"
        for place, width in zip(places, most, strict=True)
    ]


def _shown(trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most `most` trials, in order: the best ones, and running ones on up to half of the rows."""
    running = [trial for trial in trials if trial.state is State.RUNNING][: most // 2]
    kept = {trial.number for trial in running}
    for trial in trials:
        if len(kept) >= most:
            break
        kept.add(trial.number)
    return [trial for trial in trials if trial.number in kept]
