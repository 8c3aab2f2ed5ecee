"""YAML that any reader of YAML 1.1 and 1.2 reads as it was meant."""

import pytest
from hypothesis import given, strategies as st

from distrun.tools.kubernetes.yaml_text import yaml_text


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain words", "plain words"),
        ("/app/x.py", "/app/x.py"),
        ("yes", '"yes"'),
        ("1e3", '"1e3"'),
        ("08", '"08"'),
        ("y", '"y"'),
        ("", '""'),
        ("me/train:1", '"me/train:1"'),
        ("--lr", '"--lr"'),
        ('say "ä"', '"say \\"ä\\""'),
        (" end", '" end"'),
        ("a\nb", '"a\\nb"'),
        ("if a:\n    b\n\nc\n", "|\n  if a:\n      b\n\n  c"),
        (" a\nb\n", '" a\\nb\\n"'),
        ("a \nb\n", '"a \\nb\\n"'),
        ("a\x85b\u2028c", '"a\\u0085b\\u2028c"'),
        (3, "3"),
        (True, "true"),
    ],
)
def test_only_words_stand_without_quotes(value, written):
    assert yaml_text([{"key": value}]) == f"key: {written}\n"


def test_all_of_it_is_read_back_as_it_was():
    yaml = pytest.importorskip("yaml")
    texts = ["if a:\n    b\n\nc\n", "a\nb", "a\n\n", "\na\n", "a\t\n", "yes", "é\n", "# a\n", "- b\n"]
    document = {"list": [*texts, {"deep": texts}], "flow": {"a": "x"}, "block": {"a": texts[0], "b": 1}}
    assert yaml.safe_load(yaml_text([document])) == document


def nested(inside):
    return st.lists(inside, max_size=4) | st.dictionaries(st.text(), inside, max_size=4)


data = st.recursive(st.text() | st.integers() | st.booleans(), nested, max_leaves=8)


@given(st.dictionaries(st.text(), data, min_size=1, max_size=4))
def test_data_of_any_kind_is_read_back_as_it_was(document):
    assert pytest.importorskip("yaml").safe_load(yaml_text([document])) == document


def test_collections_that_are_short_stand_on_one_line_and_others_do_not():
    long = "x" * 100
    content = {"spec": {"items": [{"name": "a", "deep": {"x": [long]}}, {"name": "b"}, [[long]]], "none": {}}}
    assert yaml_text([content, {"second": 1}]).splitlines() == [
        "spec:",
        "  items:",
        "    - name: a",
        "      deep:",
        "        x:",
        f"          - {long}",
        "    - {name: b}",
        "    - - - " + long,
        "  none: {}",
        "---",
        "second: 1",
    ]
