"""The pages: their code sets epochs, they install what there is, and they say what they lack."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = [
    REPOSITORY / "README.md",
    *(page for page in sorted((REPOSITORY / "docs").rglob("*.md")) if page.parent.name != "site"),
]
BUILT_FROM = [*PAGES, *(path for path in (REPOSITORY / "examples").rglob("*") if path.is_file())]


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(REPOSITORY)))


def code(path):
    return re.findall(r"^```python.*?\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def test_a_loop_with_a_shuffling_sampler_sets_the_epoch():
    loops = [block for path in PAGES for block in code(path) if ".distributed_sampler(" in block]
    assert len(loops) >= 2
    assert [block for block in loops if "sampler.set_epoch(epoch)" not in block] == []


@named(BUILT_FROM)
def test_nothing_is_installed_under_a_name_that_an_index_does_not_have(path):
    text = path.read_bytes().decode(errors="replace")
    assert re.findall(r"pip3? install (?:-\S+ )*['\"]?distrun\b.*", text) == []


def test_the_table_of_extras_has_all_of_them():
    metadata = (REPOSITORY / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    extras = re.findall(r"^(\w+) = \[", metadata.partition("\n[")[0], re.MULTILINE)
    table = (REPOSITORY / "docs" / "getting-started.md").read_text().partition("| extra | brings |")[2].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines() if "|" in row))
    assert "sweep" in extras
    assert sorted(named) == sorted(extras)


def headings(path):
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@named(PAGES)
def test_a_link_to_a_part_of_a_page_leads_to_a_heading(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^()\s:#]*)#([^()\s]+)\)", text)
    pages = [(path.parent / page if page else path, anchor) for page, anchor in links]
    assert [
        f"{page.name}#{anchor}" for page, anchor in pages if page.suffix == ".md" and anchor not in headings(page)
    ] == []


@named(PAGES)
def test_pictures_of_a_page_are_there_and_small(path):
    pictures = re.findall(r"!\[[^\]]*\]\(([^()\s:]+)\)", path.read_text())
    assert [name for name in pictures if not 0 < (path.parent / name).stat().st_size < 150_000] == []


@named(PAGES)
def test_links_lead_to_files(path):
    links = re.findall(r"\]\(([^()\s:#]+)(?:#[^()\s]*)?\)", path.read_text())
    assert [target for target in links if not (path.parent / target).exists()] == []


def test_each_page_is_in_the_navigation_and_a_link_leads_to_it():
    navigation = (REPOSITORY / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    listed = set(re.findall(r"(\S+\.md)$", navigation, re.MULTILINE))
    linked = {
        (path.parent / target).resolve()
        for path in PAGES
        for target in re.findall(r"\]\(([^()\s:#]+\.md)", path.read_text())
    }
    for page in PAGES[1:]:
        assert str(page.relative_to(REPOSITORY / "docs")) in listed
        assert page.resolve() in linked, f"no page links to {page.name}"


def test_the_page_about_bert_quotes_its_example():
    example = [line.partition("  #")[0].strip() for line in (REPOSITORY / "examples/keras_mlm.py").open()]
    (quoted,) = code(REPOSITORY / "docs" / "keras-bert.md")
    assert [line for line in quoted.splitlines() if line.strip() not in (*example, "...,")] == []


def test_readme_is_read_in_two_screens():
    assert len(PAGES[0].read_text().splitlines()) <= 120
