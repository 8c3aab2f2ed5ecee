"""The tables of figures in the documentation are what benchmarks/results has."""

import json

import pytest

from benchmarks.support import figures


@pytest.mark.parametrize("page", figures.PAGES)
def test_the_tables_of_a_page_are_those_of_the_results(page):
    text = (figures.ROOT / page).read_text(encoding="utf-8")
    assert "<!-- figures: " in text
    assert figures.rendered(text) == text, f"{page} is not what benchmarks/results has: run scripts/bench --write-pages"


def test_a_table_has_the_chosen_rows_and_ratios_of_the_medians_shown(monkeypatch, tmp_path):
    rows = {"1 KB": {"a": 1e-6, "b": 4e-6}, "1 MB": {"a": 2e-3, "b": {"median": 3e-3, "quartiles": [2, 4], "count": 9}}}
    one = {
        "title": "t",
        "tasks": "size",
        "programs": ["a", "b"],
        "ratios": [["b", "a"]],
        "notes": ["Note."],
        "unit": "s",
    }
    file = {"command": "c", "date": "d", "conditions": {"machine": "m"}, "comparisons": {"one": {**one, "rows": rows}}}
    (tmp_path / "some.json").write_text(json.dumps(file))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)

    page = figures.rendered("Before.\n<!-- figures: some.one MB -->\nold\n<!-- /figures -->\nAfter.\n")

    assert page == (
        "Before.\n<!-- figures: some.one MB -->\n\n**t** (`c`, d, m). Note.\n\n| size | a | b | b / a |\n"
        "| --- | ---: | ---: | ---: |\n| 1 MB | 2.00 ms | 3.00 ms | 1.50x |\n\n<!-- /figures -->\nAfter.\n"
    )
    assert figures.rendered(page) == page
