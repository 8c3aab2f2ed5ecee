"""The site: links between pages, the reference of public names, and the command line."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from distrun.runtime.collectives import reductions

REPOSITORY = Path(__file__).resolve().parents[3]

griffe = pytest.importorskip("griffe")
sys.path.insert(0, str(REPOSITORY / "docs" / "site"))
assemble = import_module("assemble")
command_line = import_module("command_line")
docstrings = import_module("docstrings")
reference = import_module("reference")


def test_links_between_documents_become_links_between_pages(monkeypatch):
    written = {}
    monkeypatch.setattr(assemble, "write", written.__setitem__)
    broken = []

    text = assemble.with_links(
        "[a](docs/gpus.md#memory) [b](CHANGELOG.md) [c](examples/torch_digits.py)", "README.md", broken
    )

    assert text == "[a](gpus.md#memory) [b](changelog.md) [c](repository/examples/torch_digits.py.md)"
    assert "# examples/torch_digits.py" in written["repository/examples/torch_digits.py.md"]
    assert broken == []


def test_links_are_relative_to_the_page_that_they_stand_on():
    assert assemble.with_links("[a](../gpus.md)", "docs/reference/torch.md", []) == "[a](../gpus.md)"


def test_a_link_to_no_file_is_reported():
    broken = []
    assemble.with_links("[a](gone.md)", "docs/gpus.md", broken)
    assert broken == ["docs/gpus.md: the link to gone.md leads to no file"]


@pytest.mark.parametrize("text", ["`[a](gone.md)`", "```\n[a](gone.md)\n```", "[a](https://pypi.org)", "[a](#memory)"])
def test_code_and_links_elsewhere_stay_as_they_are(text):
    broken = []
    assert assemble.with_links(text, "docs/gpus.md", broken) == text
    assert broken == []


@pytest.fixture
def package(monkeypatch, tmp_path):
    """Makes the package `distrun.face` out of source text."""

    def visit(source):
        path = tmp_path / "face.py"
        path.write_text(source)
        module = griffe.visit("face", path, source)
        monkeypatch.setattr(reference, "module", lambda path: module)
        reference.public_names.cache_clear()

    yield visit
    reference.public_names.cache_clear()


def test_public_are_names_in_all_and_imports_as_themselves(package):
    package("__all__ = ['one']\n")
    assert reference.public_names("distrun.face") == ["one"]
    package("from a import b, c as c, d as _d\nif TYPE_CHECKING:\n    from e import f as f\n")
    assert reference.public_names("distrun.face") == ["c", "f"]


def test_a_public_name_without_a_docstring_is_reported(package):
    package("__all__ = ['told', 'untold']\ndef told():\n    '''A docstring.'''\ndef untold(): ...\n")
    assert reference.complaints("distrun.face", []) == ["distrun.face.untold has no docstring"]


def test_a_public_name_that_is_made_at_run_time_is_reported(package):
    package("__all__ = ['late']\ndef __getattr__(name): ...\n")
    assert reference.complaints("distrun.face", []) == [
        "distrun.face.late is made at run time: import it under TYPE_CHECKING, too"
    ]


def test_a_package_without_public_names_is_reported(package):
    package("def told():\n    '''A docstring.'''\n")
    assert reference.complaints("distrun.face", []) == ["distrun.face has no public names: import them as `x as x`"]


@pytest.mark.parametrize("name", reductions.__all__)
def test_the_reference_of_a_collective_is_its_help_text(name):
    path = Path(reductions.__file__)
    module = griffe.visit("reductions", path, path.read_text())
    docstrings.CompletedDocstrings().on_module(mod=module)
    assert module[name].docstring.value == getattr(reductions, name).__doc__


@pytest.mark.parametrize("name", ["distrun", "distrun doctor"])
def test_the_command_line_page_has_every_option(name):
    options = [option for parameter in command_line.COMMANDS[name].params for option in parameter.opts]
    rows = "".join(re.findall(r"^\| `.*?`", command_line.expanded(f"::: {name} --help"), re.MULTILINE))
    assert [option for option in options if option.startswith("-") and option not in rows] == []


@pytest.mark.parametrize("name", ["horovodrun", "mpirun", "torchrun"])
def test_the_page_of_other_command_lines_has_every_flag_and_what_becomes_of_it(name):
    source = (REPOSITORY / "docs" / "reference" / "other-command-lines.md").read_text()
    page = command_line.expanded(source)
    assert f"::: distrun-compat {name}" in source
    for flag in command_line.program(name).flags:
        assert f"| `{', '.join(flag.names)}" in page


def test_nothing_in_a_help_text_is_markdown():
    assert command_line.plain("x_*[1] | <b>") == r"x\_\*\[1\] \| &lt;b&gt;"
