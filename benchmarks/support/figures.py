"""The tables of figures in the documentation, rendered from benchmarks/results: scripts/bench --write-pages.

A file there is what `scripts/bench --json FILE` writes, with a short name for each comparison. `PAGES` have markers
around their tables:

    <!-- figures: allreduce.allreduce 4 KB|100 MB + step.step -->
    ...
    <!-- /figures -->

Each table is a file and one of its comparisons, and then a pattern of the rows that are shown, all if there is none.
`headlines` is the table of `HEADLINES`.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.support.comparison import WIDTH, Comparison, duration, markdown_tables

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/figures.md", "docs/thin-networks.md")

HEADLINES = (
    (
        "allreduce of 100 MB on one host, ordinary tensors",
        "{allreduce.allreduce/100 MB/distrun}",
        "gloo {allreduce.allreduce/100 MB/gloo}, Open MPI {allreduce.allreduce/100 MB/Open MPI}",
    ),
    (
        "the same in distrun's shared memory (`distrun.empty`)",
        "{allreduce.allreduce/100 MB/distrun.empty}",
        "-",
    ),
    (
        "200 ordinary tensors of 4 KB, one by one",
        "{many.many/started one by one, then waited for/distrun.torch}",
        "gloo {many.many/started one by one, then waited for/gloo}, "
        "Open MPI {many.many/started one by one, then waited for/Open MPI}",
    ),
    (
        "a training step of PyTorch, 25M parameters",
        "adds {step.step/6 x Linear(2048)/distrun adds} to {step.step/6 x Linear(2048)/alone}",
        "DDP adds {step.step/6 x Linear(2048)/DDP adds}",
    ),
    (
        "the same on TensorFlow",
        "adds {frameworks.tensorflow/25M parameters/distrun adds} to {frameworks.tensorflow/25M parameters/alone}",
        "MultiWorkerMirroredStrategy adds {frameworks.tensorflow/25M parameters/MultiWorkerMirrored adds}",
    ),
    (
        "the same of PyTorch, 2 hosts at 1 Gbit/s",
        "adds {compression.step/distrun/float32}, with bf16 {compression.step/distrun/bf16}",
        "DDP adds {compression.step/DDP over gloo/float32}, with bf16 {compression.step/DDP over gloo/bf16}",
    ),
    (
        "start and end of a job, `-np 2 true`",
        "{launch.launch/true/distrun -np 2}",
        "torchrun {launch.launch/true/torchrun (2)}, mpirun {launch.launch/true/mpirun -np 2}",
    ),
)
"""The rows of the front page: what was measured, distrun and others. A value is {file.comparison/row/program}."""

_TABLES = re.compile(r"^<!-- figures: (?P<names>[^\n]+) -->\n.*?^<!-- /figures -->$", re.DOTALL | re.MULTILINE)


def rendered(page: str) -> str:
    """Return the text of a page with the tables between its markers as the results have them."""

    def with_tables(marked: re.Match[str]) -> str:
        head, _, _ = marked.group().partition("\n")
        tables = "\n\n".join(section(*name.split(" ", 1)) for name in marked["names"].split(" + "))
        return f"{head}\n\n{tables}\n\n<!-- /figures -->"

    return _TABLES.sub(with_tables, page)


def write_pages() -> None:
    """Render the tables of all pages again, in place."""
    for name in PAGES:
        path = ROOT / name
        path.write_text(rendered(path.read_text(encoding="utf-8")), encoding="utf-8")


def section(name: str, rows: str = "") -> str:
    """Return the comparison `name`, such as `hosts.allreduce`, with its notes and where the figures come from.

    Args:
        name: a file of results without its suffix and one of its comparisons, or `headlines`.
        rows: a regular expression that is searched in the names of the rows to show.
    """
    if name == "headlines":
        return headlines()
    file, comparison = _found(name)
    comparison.rows = {row: results for row, results in comparison.rows.items() if re.search(rows, row)}
    tables = markdown_tables(comparison.cells(), len(comparison.ratios))
    source = f"(`{file['command']}`, {file['date']}, {file['conditions']['machine']})"
    text = " ".join([f"**{comparison.title}**", source + ".", *comparison.notes])
    return "\n\n".join([textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False), *tables])


def headlines() -> str:
    """Return the table of `HEADLINES`."""
    lines = ["| | distrun | others |", "| --- | --- | --- |"]
    for row in HEADLINES:
        lines.append(f"| {' | '.join(re.sub(r'{(.+?)}', lambda value: _value(value[1]), cell) for cell in row)} |")
    return "\n".join(lines)


def _value(path: str) -> str:
    """Return the value at `file.comparison/row/program`, where the row may have slashes, as text."""
    name, _, place = path.partition("/")
    row, _, program = place.rpartition("/")
    return duration(_found(name)[1].rows[row][program].median)


def _found(name: str) -> tuple[dict[str, Any], Comparison]:
    """Return a file of results and its comparison, given as `file.comparison`."""
    stem, _, key = name.partition(".")
    file = json.loads((RESULTS / f"{stem}.json").read_text(encoding="utf-8"))
    return file, Comparison.decode(file["comparisons"][key])
