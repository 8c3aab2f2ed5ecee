"""Decisions of a training loop by what only a part of the batch shows: found in the source, and by marked numbers."""

from __future__ import annotations

import ast
import json
import math
import pickle
import statistics as of_python

import pytest

torch = pytest.importorskip("torch")

from distrun.auto.partial_numbers import partial_decisions  # noqa: E402
from distrun.auto.refusing import Refusal  # noqa: E402
from distrun.auto.torch.statistics import following as followings, numbers  # noqa: E402

pytestmark = pytest.mark.gate
LOOP = """
for epoch in range(3):
    correct = seen = 0
    for step, (x, y) in enumerate(loader):
        output = model(x)
        loss = criterion(output, y)
        loss.backward()
        correct += (output.argmax(1) == y).sum().item()
        seen += len(x)
        {inside}
    {after}
"""


@pytest.fixture
def shared(monkeypatch):
    """This process as one of several ranks."""
    monkeypatch.setattr(numbers, "is_shared", lambda: True)
    monkeypatch.setattr(followings, "is_shared", lambda: True)


@pytest.fixture
def number(shared):
    return numbers.of(3, "the sum of the batch's samples (x.py:9)")


@pytest.mark.parametrize(
    ("inside", "after", "condition"),
    [
        ("if seen >= 40: break", "", "seen >= 40"),
        ("", "if correct / len(dataset) > 0.9: break", "correct / len(dataset) > 0.9"),
        ("while seen < 10: step()", "", "seen < 10"),
        ("if seen > 40: print(seen)", "", None),
        ("if step % 10 == 0: save()", "", None),
        ("if loss.item() > 3: continue", "if epoch > 2: break", None),
    ],
)
def test_conditions_on_what_a_part_counts_are_found_in_the_source(inside, after, condition):
    found = [text for _, text in partial_decisions(ast.parse(LOOP.format(inside=inside, after=after)))]
    assert found == ([condition] if condition else [])


def test_arithmetic_keeps_what_a_number_is_of(number):
    for result in (
        number + 1,
        1 - number,
        number / 2,
        2.0 * (number / 2),
        -number,
        abs(number),
        sum([number, 2]),
        number * 1.5,
    ):
        assert isinstance(result, (numbers.PartInt, numbers.PartFloat))
        assert result.words == number.words
    assert f"{number / 2:.2f} {number} {number * 2:3d}" == "1.50 3   6"
    assert json.dumps([number, number / 2]) == "[3, 1.5]"
    assert {type(each) for each in pickle.loads(pickle.dumps([number, number / 2]))} == {int, float}
    assert torch.tensor([number / 2, number]).tolist() == [1.5, 3.0]
    assert math.sqrt(number + 1) == 2.0


@pytest.mark.parametrize(
    "decide",
    [
        lambda number: number > 2,
        lambda number: number / 2 > 2.5,
        lambda number: max(1, number),
        lambda number: bool(number),
        lambda number: number == 3,
        lambda number: torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([torch.zeros(1)], lr=0.1)).step(
            number
        ),
    ],
    ids=["greater", "computed", "max", "truth", "equal", "scheduler"],
)
def test_a_decision_by_such_a_number_is_refused(number, decide):
    with pytest.raises(Refusal, match="2") as refusal:
        decide(number)
    assert "decides by the sum of the batch's samples (x.py:9)" in refusal.value.reason


def test_after_some_epochs_a_decision_outside_of_the_loop_is_warned_of(number, monkeypatch, capfd):
    monkeypatch.setattr(numbers.session, "iteration", 5)
    monkeypatch.setattr(numbers.distrun, "rank", lambda: 0)
    monkeypatch.setattr(numbers, "tell", print)
    is_more, is_equal = number > 2, number == 3
    assert is_more
    assert is_equal
    assert capfd.readouterr().out.count("decides by the sum of the batch's samples") == 1
    monkeypatch.setattr(numbers.session, "part", object())
    with pytest.raises(Refusal):
        bool(number)


def test_an_assertion_decides_nothing(number):
    assert number > 2
    with pytest.raises(Refusal):
        bool(number > 2)


def test_libraries_may_compare_such_numbers(number):
    assert of_python.median([number, number + 1, number + 2]) is not None


def test_numbers_and_truth_values_of_statistics_are_told_from_others(shared):
    following = followings.Following()
    x, of_other = torch.randn(7, 4), torch.randn(3)
    following.begin(x, 7)
    try:
        count = (x > 0).sum().item()
        assert isinstance(count, numbers.PartInt)
        assert type(of_other.sum().item()) is float
        assert type(x.shape[0]) is int
        assert bool(of_other.sum() > -100)
        assert bool((x < 100).all()), "whether all samples fulfil something may be asked; the ranks compare it"
        with pytest.raises(Refusal):
            bool(x.mean() > 0)
    finally:
        following.end()
