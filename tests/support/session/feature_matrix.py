"""The feature matrix, docs/features.md: what the tests have seen working. `pytest --write-features` writes it.

A test that proves a feature says so: `@pytest.mark.feature("gradient accumulation")`. Its column is its parameter
`backend` or the marker's keyword of that name; its table is the module's `feature_group`, of which all modules are in
one folder. A session that runs all tests of a folder fails if its tables in the document are not what they have shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "features.md"
PREFACE = """\
# What works with which framework

Written by the tests (`scripts/features`), each on two or more real ranks unless the feature does not concern ranks.
"yes": every test of the feature has passed there; "-": no test covers it there.
"""
COLUMNS = ("tensorflow", "jax", "torch", "tf_keras")


@dataclass
class Matrix:
    """Outcomes by table, row and column, in the order in which the tests stand."""

    cells: dict[str, dict[str, dict[str, bool]]] = field(default_factory=dict)

    def add(self, group: str, row: str, column: str, passed: bool) -> None:
        cell = self.cells.setdefault(group, {}).setdefault(row, {})
        cell[column] = cell.get(column, True) and passed

    def table(self, group: str) -> str:
        rows = self.cells[group]
        columns = [name for name in COLUMNS if any(name in cells for cells in rows.values())]
        lines = [f"| {group} | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
        for row in sorted(rows, key=str.lower):
            shown = [{True: "yes", False: "no"}.get(rows[row].get(name), "-") for name in columns]
            lines.append(f"| {row} | {' | '.join(shown)} |")
        return "\n".join(lines) + "\n"

    def document(self) -> str:
        return "\n".join([PREFACE, *map(self.table, sorted(self.cells))])


class FeaturePlugin:
    """Fills the matrix as tests end, and compares or writes the document at the end."""

    def __init__(self, writes: bool) -> None:
        self.matrix = Matrix()
        self.writes = writes
        self.folders: dict[str, Path] = {}  # of the tables
        self.is_skipped = False
        self.complaint = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call) -> Iterator[None]:
        report = yield
        for marker in item.iter_markers("feature"):
            self.is_skipped |= report.skipped and not hasattr(report, "wasxfail")
            if report.when == "call" or report.failed:
                group, *cell = _place(item, marker)
                self.folders[group] = item.path.parent
                self.matrix.add(group, *cell, report.passed and not hasattr(report, "wasxfail"))
        return report

    def pytest_sessionfinish(self, session, exitstatus) -> None:
        if self.writes:
            DOCUMENT.write_text(self.matrix.document())
            return
        told = [table.strip() for table in DOCUMENT.read_text().split("\n\n")]
        is_known = exitstatus == 0 and not self.is_skipped and not _is_partial(session.config)
        folders = {Path(argument).resolve() for argument in session.config.args}
        whole = [group for group, folder in self.folders.items() if folders & {folder, *folder.parents}]
        if is_known and any(self.matrix.table(group).strip() not in told for group in whole):
            self.complaint = "docs/features.md is not what the tests have shown: run scripts/features and commit it"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.complaint:
            terminalreporter.write_line(self.complaint, red=True, bold=True)


def _place(item, marker) -> tuple[str, str, str]:
    """Table, row and column of a feature that a test proves."""
    named = item.get_closest_marker("feature_group")
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    column = marker.kwargs.get("backend") or parameters.get("backend", COLUMNS[0])
    return named.args[0] if named else "Others", marker.args[0], column


def _is_partial(config) -> bool:
    """Whether tests of the folders may be missing from this session."""
    options = config.option
    return bool(
        options.keyword
        or options.markexpr
        or getattr(options, "lf", None)
        or getattr(options, "deselect", None)
        or options.collectonly
        or (options.tier and not {"gate", "full"} <= set(options.tier))
    )
