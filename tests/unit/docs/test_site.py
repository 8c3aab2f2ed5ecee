"""The site: links between pages, and the reference of public names and of command lines, which is up to date."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from distrun.runtime.collectives import reductions

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = sorted((REPOSITORY / "docs" / "reference").glob("*.md"))

griffe = pytest.importorskip("griffe")
sys.path.insert(0, str(REPOSITORY / "docs" / "site"))
assemble = import_module("assemble")
command_line = import_module("command_line")
fill = import_module("fill")
reference = import_module("reference")
rendering = import_module("rendering")


@pytest.fixture(scope="module")
def source():
    """All of distrun, read before the tests: griffe asks git for the place of the source."""
    return reference.distrun()


@pytest.fixture(autouse=True)
def written(monkeypatch):
    """The pages that are written, and no address of the repository."""
    pages = {}
    monkeypatch.setattr(assemble, "write", pages.__setitem__)
    monkeypatch.delenv("DOCS_REPOSITORY", raising=False)
    return pages


def test_links_between_documents_become_links_between_pages_and_examples_are_pages(written):
    text = "[a](docs/gpus.md#memory) [b](CHANGELOG.md) [c](examples/torch_digits.py)"
    assert assemble.with_links(text, "README.md", []) == (
        "[a](gpus.md#memory) [b](changelog.md) [c](examples/torch_digits.py.md)"
    )
    assert "# examples/torch_digits.py" in written["examples/torch_digits.py.md"]


@pytest.mark.parametrize("address", ["", "https://host.example/distrun"])
def test_source_is_linked_where_the_repository_is_and_else_not_at_all(monkeypatch, written, address):
    monkeypatch.setenv("DOCS_REPOSITORY", address)
    text = assemble.with_links("[`run`](../distrun/cli.py) [b](../examples/torch_digits.py)", "docs/gpus.md", [])
    if address:
        blob = f"{address}/blob/main"
        assert text == f"[`run`]({blob}/distrun/cli.py) [b]({blob}/examples/torch_digits.py)"
    else:
        assert text == "`run` [b](examples/torch_digits.py.md)"
    assert list(written) == ([] if address else ["examples/torch_digits.py.md"])


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
def test_the_reference_of_a_collective_is_its_help_text(source, name):
    told = griffe.Docstring(getattr(reductions, name).__doc__).parse("google", warnings=False)
    shown = rendering.parsed(reference.target("distrun", name))
    assert len(shown) >= 4
    assert [section.kind for section in shown] == [section.kind for section in told]
    assert shown[0].value == told[0].value


def test_a_public_name_is_shown_with_signature_sections_members_and_other_forms(package):
    package(
        '''
_ALL = 0
class Box:
    """Holds things.

        Box(1).open()

    Closed at first.
    """
    lid: bool = True
    """Whether it has a lid."""
    def __init__(self, size: int = _ALL) -> None:
        """Make it.

        Args:
            size: the width,
                in cm.
        """
    def open(self) -> bool:
        """Open it.

        Returns:
            Whether it opened.

        Raises:
            OSError: it is stuck.
        """
    def _hide(self): ...
    def untold(self): ...
def send(*what, **how):
    """Send."""
def send_async(*what):
    """Start to send.

    Returns:
        A handle.
    """
'''
    )
    forms = [(name, reference.found("distrun.face", name)) for name in ("send", "send_async")]
    assert (
        rendering.entry("Box", [("Box", reference.found("distrun.face", "Box"))], 2)
        == """\
## Box

```python
Box(size: int = 0)
```

Holds things.

```python
Box(1).open()
```

Closed at first.

Arguments:

- `size`: the width, in cm.

Attributes:

- `lid`: Whether it has a lid.

### Box.open

```python
Box.open() -> bool
```

Open it.

Returns: Whether it opened.

Raises:

- `OSError`: it is stuck."""
    )
    assert (
        rendering.entry("send", forms, 3)
        == """\
### send

```python
send(*what, **how)
```

Send.

Other forms:

- `send_async(what)`: Start to send. Returns: A handle."""
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_reference_in_the_repository_is_up_to_date(source, page):
    told = "docs/reference is older than the source: run scripts/docs reference"
    assert fill.filled(page.read_text()) == page.read_text(), told


def test_the_reference_lacks_nothing_and_has_all_commands(source):
    subjects = fill.subjects()
    packages = [subject for subject in subjects if " " not in subject]
    assert [sentence for package in packages for sentence in reference.complaints(package, packages)] == []
    assert {f"distrun {name} --help".replace("  ", " ") for name in ("", *command_line.COMMANDS)} <= set(subjects)


@pytest.mark.parametrize("name", ["", "doctor"])
def test_the_command_line_page_has_every_option(name):
    command = command_line.command(name) if name else command_line.distrun
    options = [option for parameter in command.params for option in parameter.opts]
    rows = "".join(re.findall(r"^- `.*?`", command_line.described(name, 3), re.MULTILINE))
    assert [option for option in options if option.startswith("-") and option not in rows] == []


@pytest.mark.parametrize("name", ["horovodrun", "mpirun", "torchrun"])
def test_the_page_of_other_command_lines_has_every_flag_and_what_becomes_of_it(name):
    assert f"distrun-compat {name}" in fill.subjects()
    flags = command_line.flags(name)
    for flag in command_line.program(name).flags:
        assert f"- `{', '.join(flag.names)}" in flags


def test_nothing_in_a_help_text_is_markdown():
    assert command_line.plain("a_b NCCL_*[1] | <b> 1<=x [a](b)") == r"a_b NCCL\_\*[1] | &lt;b> 1<=x [a\](b)"


def test_a_page_is_described_by_its_first_paragraph_and_the_front_page_has_cards():
    assert assemble.description("# A\n\n<!-- x -->\n`b` is *a* [b](c.md)\nd.\n\ne\n") == "b is a b d."
    assert len(assemble.description("word " * 100)) <= 160
    text = assemble.with_cards("# distrun\n\na\n\n## b\n\n## c\n")
    assert text.index("grid cards") < text.index("## b")
    broken = []
    assemble.with_links(text, "README.md", broken)
    assert broken == []
