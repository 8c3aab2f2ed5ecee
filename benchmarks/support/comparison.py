"""Comparisons: the result of a benchmark as a table, written as text, as Markdown or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.support.measuring import Summary, exactly

WIDTH = 120  # of a line of Markdown


@dataclass
class Comparison:
    """Some programs side by side: a row per task, a column per program, then the ratios of columns."""

    title: str
    tasks: str
    """The heading of the first column, which names the kind of the rows."""
    programs: Sequence[str]
    ratios: Sequence[tuple[str, str]]
    """Pairs of programs: the first one's median divided by the second one's."""
    rows: dict[str, dict[str, Summary]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unit: str = "s"
    """The unit of the measurements: s, B (bytes), n (a number of things), or none."""

    def add(self, task: str, results: Mapping[str, Summary]) -> None:
        """Add a row. Programs that are not in `results` were not measured."""
        self.rows[task] = dict(results)

    def cells(self) -> list[list[str]]:
        """Return the whole table, its headings first."""
        head = [self.tasks, *self.programs, *(f"{of} / {to}" for of, to in self.ratios)]
        return [head, *(self._row(task, results) for task, results in self.rows.items())]

    def _row(self, task: str, results: Mapping[str, Summary]) -> list[str]:
        medians = {name: result.median for name, result in results.items()}
        write = {"s": duration, "B": size, "n": "{:,.0f}".format, "": "{:.4f}".format}[self.unit]
        values = [write(medians[name]) if name in medians else "-" for name in self.programs]
        return [task, *values, *(_ratio(medians.get(of), medians.get(to)) for of, to in self.ratios)]

    def encode(self) -> dict[str, Any]:
        """Return the table as plain data for JSON, in `unit`."""
        return asdict(self)

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Comparison:
        """Return the comparison that `encode` gave as plain data; a result may also be its median alone."""
        rows = {
            task: {name: _summary(result) for name, result in results.items()} for task, results in data["rows"].items()
        }
        ratios = [(of, to) for of, to in data["ratios"]]
        return cls(data["title"], data["tasks"], data["programs"], ratios, rows, list(data["notes"]), data["unit"])


def _summary(result: Any) -> Summary:
    if isinstance(result, float | int):
        return exactly(result)
    return Summary(result["median"], tuple(result["quartiles"]), result["count"])


def duration(seconds: float) -> str:
    """Format seconds with three digits and a unit: `31.9 us`, `4.41 ms`, `-0.12 ms`."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if abs(seconds) * factor < 999.5:
            return f"{_digits(seconds * factor)} {unit}"
    return f"{_digits(seconds)} s"


def size(bytes_: float) -> str:
    """Format bytes with three digits and a unit: `16.8 MB`, a megabyte being a million."""
    return f"{_digits(bytes_ / 1e6)} MB"


def _digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.{2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0}f}"


def _ratio(of: float | None, to: float | None) -> str:
    if of is None or to is None:
        return "-"
    return f"{_digits(of / to)}x" if to > 0 else "n/a"


def as_text(comparison: Comparison) -> str:
    """Format the table as aligned columns."""
    cells = comparison.cells()
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [_aligned(row, widths) for row in cells]
    return "\n".join([comparison.title, "", *lines, "", *comparison.notes])


def as_markdown(comparison: Comparison) -> str:
    """Format a table as Markdown, or two where lines would be too long: then the second one has the ratios."""
    tables = markdown_tables(comparison.cells(), len(comparison.ratios))
    notes = [textwrap.fill(note, WIDTH, break_on_hyphens=False, break_long_words=False) for note in comparison.notes]
    return "\n\n".join([f"**{comparison.title}**", *tables, *notes])


def markdown_tables(cells: Sequence[Sequence[str]], ratios: int) -> list[str]:
    """Format rows, the heading first, as a Markdown table, or as two if there is no other way to keep to `WIDTH`.

    Args:
        cells: the rows.
        ratios: the number of columns at the end that the second table has, if there is one.
    """
    whole = _markdown(cells)
    if not ratios or max(map(len, whole.splitlines())) <= WIDTH:
        return [whole]
    return [_markdown([row[:-ratios] for row in cells]), _markdown([(row[0], *row[-ratios:]) for row in cells])]


def _markdown(cells: Sequence[Sequence[str]]) -> str:
    head, *rows = cells
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def print_rich(comparison: Comparison) -> None:
    """Print a table on the terminal, as wide as it needs to be."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    head, *rows = comparison.cells()
    table = Table(title=comparison.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for column, heading in enumerate(head):
        table.add_column(heading, justify="right" if column else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    for note in comparison.notes:
        console.print(note, style="dim", markup=False)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    )
