"""Parameters: their ranges, the words of the command line, and the command of a trial."""

import pytest
from hypothesis import given, strategies as st

from distrun.errors import UsageError
from distrun.tools.sweep.search.listed import Listed, grid, size_in_words
from distrun.tools.sweep.space.command_line import parse_words
from distrun.tools.sweep.space.imports import first_imports
from distrun.tools.sweep.space.ranges import Choices, Floats, Integers, parse_range, plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..4", Integers(1, 4)),
        ("0..10/5", Integers(0, 10, 5)),
        ("log:16..1024", Integers(16, 1024, is_log=True)),
        ("-1..1.5", Floats(-1, 1.5)),
        ("0..1/0.25", Floats(0, 1, 0.25)),
        ("log:1e-4..1e-1", Floats(1e-4, 1e-1, is_log=True)),
        ("adam|sgd", Choices(("adam", "sgd"))),
        ("1e-3|1e-2", Choices(("1e-3", "1e-2"))),
        ("3", Choices(("3",))),
        ("../a|../b", Choices(("../a", "../b"))),
    ],
)
def test_a_range_is_read_and_written_again(text, expected):
    found = parse_range("p", text)
    assert found == expected
    assert parse_range("p", str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "4..1",
        "1..x",
        "log:0..1",
        "log:1..10/2",
        "0..1/0",
        "0..1/2",
        "a||b",
        "a|a",
        "log:a|b",
        "log:1..2|3..4",
        "1..nan",
        "1..inf",
        f"1..1{'0' * 400}",
        "-1e308..1e308",
        f"-1{'0' * 308}..1{'0' * 308}",
    ],
)
def test_what_is_no_range_is_refused_with_what_is_allowed(text):
    with pytest.raises(UsageError, match=r"parameter lr=.*"):
        parse_range("lr", text)


@given(st.integers(-1000, 1000), st.integers(1, 1000), st.integers(1, 50))
def test_listed_integers_are_in_their_range(low, extent, step):
    values = Integers(low, low + extent, min(step, extent)).listed()
    assert values[0] == low
    assert all(low <= value <= low + extent for value in values)


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 50))
def test_listed_floats_are_in_their_range(low, extent, parts):
    values = Floats(low, low + extent, extent / parts).listed()
    assert len(values) in (parts, parts + 1)
    assert all(low - 1e-9 <= value <= low + extent + 1e-9 for value in values)


def test_small_steps_are_not_rounded():
    assert parse_range("lr", "1e-13..3e-13/5e-14").listed() == [1e-13, 1.5e-13, 2e-13, 2.5e-13, 3e-13]
    assert parse_range("lr", "0.5..1.5e13/1e13").listed() == [0.5, 1e13 + 0.5]


def test_a_parameter_is_appended_or_put_in_its_place():
    template = parse_words(["python", "-u", "t.py", "--out=run-{lr}", "lr=0.1..1", "w=1|2", "--", "x=5", "{w}"])
    assert list(template.parameters) == ["lr", "w"]
    assert template.command({"lr": 0.5, "w": "2"}) == ["python", "-u", "t.py", "--out=run-0.5", "--w=2", "x=5", "{w}"]


def test_a_bare_script_runs_by_the_same_python_and_a_word_in_hydras_style_is_no_parameter():
    template = parse_words(["t.py", "lr={lr}", "lr=0.1|0.2"], python="/py")
    assert template.command({"lr": "0.2"}) == ["/py", "t.py", "lr=0.2"]


def test_choices_with_braces_are_refused_and_not_passed_on_as_one_word():
    for word in ('x={"a":1}|{"b":2}', "x={1}|{2}"):
        with pytest.raises(UsageError, match=r"parameter x=.* has braces"):
            parse_words(["t.py", word])
    assert parse_words(["t.py", "x={y}|{y}", "y=1|2", "{a|b}", "--", "x={1}|{2}"]).command({"y": "1"})[2:] == [
        "x=1|1",
        "{a|b}",
        "x={1}|{2}",
    ]


def test_a_command_is_needed_and_a_parameter_is_given_once():
    with pytest.raises(UsageError, match="no command"):
        parse_words(["--", "a"])
    with pytest.raises(UsageError, match="given twice"):
        parse_words(["t.py", "a=1|2", "a=3"])


def test_a_grid_has_all_combinations_and_its_size_is_told():
    space = parse_words(["t.py", "a=1..2", "b=x|y|z"]).with_seeds(2).parameters
    points = grid(space)
    assert len(points) == len({tuple(point.items()) for point in points}) == 12
    assert size_in_words(space) == "12 trials: 2 of a x 3 of b x 2 of seed"
    source = Listed(points, finished=points[3:5])
    asked = []
    while (values := source.ask(len(asked))) is not None:
        asked.append(values)
    assert asked == [*points[:3], *points[5:]]
    with pytest.raises(UsageError, match="--grid cannot list the values of lr"):
        grid({"lr": Floats(0, 1)})


def test_a_grid_that_no_memory_holds_is_refused_at_once():
    with pytest.raises(UsageError, match="--grid has 10000000000 trials, 1048576 are allowed: give fewer values"):
        grid(parse_words(["t.py", "a=1..100000", "b=1..100000"]).parameters)
    with pytest.raises(UsageError, match=f"--grid has 1{'0' * 20} trials"):
        grid(parse_words(["t.py", f"a=1..1{'0' * 20}"]).parameters)


def test_choices_are_numbers_in_json():
    assert [plain(value) for value in ("3", "1e-3", "x", "nan", 2)] == [3, 0.001, "x", "nan", 2]


def test_a_spare_imports_what_a_script_imports_first_and_no_more(tmp_path):
    (tmp_path / "model.py").write_text("import json\nfrom torch import nn\nVALUE = 1\nimport late_in_model\n")
    (tmp_path / "train.py").write_text(
        '"""Train."""\nfrom __future__ import annotations\nimport numpy as np, os.path\nimport model\n'
        "from keras.layers import Dense\nnp.random.seed(0)\nimport late\n"
    )
    assert first_imports(["train.py"], str(tmp_path)) == ["numpy", "os.path", "json", "torch", "keras.layers"]
    assert first_imports(["-c", "import a\nimport b"], str(tmp_path)) == ["a", "b"]
    assert first_imports(["missing.py"], str(tmp_path)) == []


def test_a_module_that_sets_variables_ends_what_a_spare_imports(tmp_path):
    (tmp_path / "backend.py").write_text("import os\nos.environ['KERAS_BACKEND'] = 'torch'\n")
    (tmp_path / "train.py").write_text("import numpy\nimport backend\nimport keras\n")
    assert first_imports(["train.py"], str(tmp_path)) == ["numpy", "os"]
