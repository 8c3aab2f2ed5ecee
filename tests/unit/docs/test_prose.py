"""scripts/prose finds headless docstrings, long lines, statements that a comment has broken, and replaced words."""

import ast
import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "prose"


@pytest.fixture(scope="module")
def prose():
    loader = SourceFileLoader("prose", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("prose", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "text", ["What a rank tells.", "of one host", "The same, in place.", "How many.", "By name.", "."]
)
def test_a_headless_or_empty_docstring_is_found_wherever_it_stands(prose, text):
    quoted = f'"""{text}"""'
    source = f"{quoted}\nclass A:\n    {quoted}\n    b: int = 1\n    {quoted}\n    def c(self):\n        {quoted}\n"
    assert [line for line, _ in prose.headless_docstrings(ast.parse(source))] == [1, 3, 5, 7]


@pytest.mark.parametrize(
    "text", ["Return what a rank tells.", "Whatever.", "Ofsets of tensors.", "Byte order.", "Whole."]
)
def test_other_first_lines_pass(prose, text):
    assert not list(prose.headless_docstrings(ast.parse(f'"""{text}\n\nWhat follows is free."""\n')))


@pytest.mark.parametrize(
    ("section", "found"),
    [
        ("Args:\n        a: one.\n        b, c: two: three.\n            So: it.\n\n    Raises:\n        X: no.", 0),
        ("Args:\n        a: one.\n\n        Raises:\n            X: it fails.", 1),
        ("Args:\n        a: one.\n        d: none.", 1),
        ("Args:\n        a: one. b: two.", 1),
    ],
)
def test_sections_of_docstrings_are_in_their_place_and_describe_parameters(prose, section, found):
    source = f'def f(a, *b, c=1):\n    """Do it.\n\n    {section}\n    """\n'
    assert len(list(prose.wrong_sections(ast.parse(source)))) == found


def test_a_string_that_documents_nothing_is_no_docstring(prose):
    assert not list(prose.headless_docstrings(ast.parse('f("What?")\n"""What?"""\n')))


def test_a_line_is_too_long_from_121_characters_unless_it_is_one_word(prose):
    lines = ["a b" + "c" * 117, "a b" + "c" * 118, "https://" + "c" * 200, "- " + "c" * 200]
    assert [line for line, _ in prose.long_lines("\n".join(lines))] == [2]


@pytest.mark.parametrize(
    "source", ["x = (\n    1  # why\n)\n", "x = f(\n    1, 2\n)  # why\n", "if (\n    x  # why\n):\n    pass\n"]
)
def test_a_statement_that_only_a_comment_breaks_is_found(prose, source):
    assert [line for line, _ in prose.broken_statements(source)] == [1]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # why\n",
        "# why\nx = f(\n    1, 2\n)\n",
        "x = f(\n    1,  # why\n    2,\n)\n",
        "x = f(\n    # why\n    1\n)\n",
        "x = (\n    a  # why\n    + b\n)\n",
        f"x = (\n    {'a' * 118}  # why\n)\n",
    ],
)
def test_a_statement_that_has_to_be_broken_passes(prose, source):
    assert not list(prose.broken_statements(source))


def test_a_folder_of_too_many_entries_is_found_and_folders_in_it_count_once(prose):
    files = [f"a/{number}.py" for number in range(15)] + ["a/b/1.py", "a/b/2.py"]
    assert list(prose.large_folders(files)) == []
    assert list(prose.large_folders([*files, "a/c/d/1.py"])) == [("a", 17)]
    assert list(prose.large_folders(f"distrun/{number}.py" for number in range(17))) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Return the meeting."""\nclass NewLane: ...\n', [1, 2]),
        ("x = 1  # silenced\n", [1]),
        ("class A:\n    def end_of_story(self, local_guest):\n        self.was_narrowed = 1\n", [2, 2, 3]),
        ('tensor.narrow(0, 1)\nx = "meeting"\nTensorBoard = x\n', []),
    ],
)
def test_replaced_words_are_found_in_prose_and_in_names_that_are_defined_there(prose, text, lines):
    assert sorted(line for line, _ in prose.replaced_words("distrun/a.py", text)) == lines
