"""What a rank knows of its operations, without other ranks: the engine is whoever takes them out again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from distrun.errors import UsageError
from distrun.runtime.handles import Handle
from distrun.runtime.ledger import Ledger
from distrun.runtime.messages import EXECUTE, pack_numbers
from distrun.runtime.request import Request


def handle(*shape: int, name: str | None = "a") -> Handle:
    return Handle(cast(Any, None), Request("allreduce", name, "float32", (shape,)), ())


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(1 << 20)


def learn(ledger: Ledger, made: Handle, number: int) -> None:
    """The operation was spelled out, and carried out under a new number."""
    ledger.enter(made)
    assert made.spelled_out
    assert ledger.take_new(made.request, number) is made


def test_two_requests_that_take_turns_under_one_name_are_spelled_out_once_each(ledger):
    learn(ledger, handle(3), 0)
    learn(ledger, handle(4), 1)
    for shape, number in ((3, 0), (4, 1), (3, 0), (3, 0), (4, 1)):
        again = handle(shape)
        ledger.enter(again)
        assert (again.number, again.spelled_out) == (number, b"")
        assert ledger.take(pack_numbers(EXECUTE, [number])) == [again]
    assert not ledger.pending


def test_all_numbers_that_a_name_has_stood_for_are_known(ledger):
    learn(ledger, handle(3), 0)
    learn(ledger, handle(3, name="b"), 1)
    learn(ledger, handle(4), 2)
    assert ledger.numbers_of((0, "a")) == [0, 2]


def test_a_name_that_is_under_way_cannot_be_used_for_another_operation(ledger):
    ledger.enter(handle(3))
    with pytest.raises(UsageError, match=r"^allreduce 'a' is under way already: "):
        ledger.enter(handle(4))


def test_unnamed_operations_are_taken_in_their_order(ledger):
    learn(ledger, handle(3, name=None), 0)
    first, second = handle(3, name=None), handle(3, name=None)
    ledger.enter(first)
    ledger.enter(second)
    assert (first.number, second.number) == (0, 0)
    assert ledger.take(pack_numbers(EXECUTE, [0, 0])) == [first, second]
