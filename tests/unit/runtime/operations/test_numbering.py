"""Numberings that go back when a generation begins, and process sets that are made again by their rules."""

import pytest

from distrun.errors import UsageError
from distrun.runtime.operations import numbering
from distrun.runtime.operations.numbering import Numbering
from distrun.runtime.process_sets.process_set import ProcessSet


@pytest.fixture(autouse=True)
def _own_numberings(monkeypatch):
    monkeypatch.setattr(numbering, "_all", [])


def test_a_survivor_and_a_newcomer_give_the_same_numbers():
    """Both run the script up to the mark; the survivor has made more since, inside of what it now enters again."""
    survivor, newcomer = Numbering(), Numbering()
    made_before = [survivor.next(), survivor.next()]
    assert made_before == [newcomer.next(), newcomer.next()]
    numbering.mark()
    assert [survivor.next() for _ in range(3)] == [2, 3, 4]
    numbering.rewind()
    assert survivor.next() == newcomer.next() == 2


def test_a_numbering_that_is_made_after_the_mark_begins_anew():
    numbering.mark()
    late = Numbering()
    late.next()
    numbering.rewind()
    assert (late.count, late.next()) == (0, 0)


def test_to_restart_leaves_the_mark():
    counted = Numbering()
    counted.next()
    numbering.mark()
    counted.restart()
    assert counted.next() == 0
    numbering.rewind()
    assert counted.next() == 1


def test_a_rule_gives_the_ranks_for_each_size():
    evens = ProcessSet(lambda size: range(0, size, 2))
    assert [evens.ranks_of(size) for size in (1, 2, 5)] == [(0,), (0,), (0, 2, 4)]
    assert evens.ranks is None
    assert ProcessSet([2, 0]).ranks_of(1) == (0, 2)  # a list is what it is
    assert ProcessSet(lambda size: range(4, size)).ranks_of(4) == ()


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (lambda size: [size], r"returns \[4\] for a job with 4 ranks: let it return some of 0 to 3"),
        (lambda size: [-1, 0], r"returns \[-1, 0\] for a job with 4 ranks"),
        (lambda size: [1, 1], r"each of them once"),
        (lambda size: size, "give ranks as whole numbers"),
        (lambda size: ["a"], "give ranks as whole numbers"),
    ],
)
def test_a_rule_that_gives_something_else_is_refused(rule, sentence):
    with pytest.raises(UsageError, match=sentence):
        ProcessSet(rule).ranks_of(4)
