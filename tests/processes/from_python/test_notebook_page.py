"""The cells of docs/notebooks.md, run as a notebook: they print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "notebooks.md"


@pytest.mark.gate
def test_the_cells_of_the_page_print_what_it_says(jupyter, tmp_path):
    import nbclient
    import nbformat

    blocks = re.findall(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) > 6
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code.rstrip("\n")) for code, _ in blocks])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    for cell, (_, expected) in zip(notebook.cells, blocks, strict=True):
        shown = [output.get("text") or output["data"]["text/plain"] for output in cell.outputs]
        if expected:
            assert sorted("\n".join(shown).split()) == sorted(expected.split())
    assert "<html" in (tmp_path / "report.html").read_text()
