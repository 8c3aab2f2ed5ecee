"""What a rank knows of its operations, without other ranks: the engine is whoever takes them out again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from distrun.errors import UsageError
from distrun.runtime.negotiation.messages import EXECUTE, pack_numbers
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import Request


def handle(*shape: int, name: str | None = "a") -> Handle:
    return Handle(cast(Any, None), Request("allreduce", name, "float32", (shape,)), ())


@pytest.fixture
def pending_operations() -> PendingOperations:
    return PendingOperations(1 << 20)


def learn(pending_operations: PendingOperations, made: Handle, number: int) -> None:
    """The operation was spelled out, and carried out under a new number."""
    pending_operations.enter(made)
    assert made.full_request
    assert pending_operations.take_new(made.request, number) is made


def test_two_requests_that_take_turns_under_one_name_are_spelled_out_once_each(pending_operations):
    learn(pending_operations, handle(3), 0)
    learn(pending_operations, handle(4), 1)
    for shape, number in ((3, 0), (4, 1), (3, 0), (3, 0), (4, 1)):
        again = handle(shape)
        pending_operations.enter(again)
        assert (again.number, again.full_request) == (number, b"")
        assert pending_operations.take(pack_numbers(EXECUTE, [number])) == [again]
    assert not pending_operations.pending


def test_all_numbers_that_a_name_has_stood_for_are_known(pending_operations):
    learn(pending_operations, handle(3), 0)
    learn(pending_operations, handle(3, name="b"), 1)
    learn(pending_operations, handle(4), 2)
    assert pending_operations.numbers_of((0, "a")) == [0, 2]


def test_a_name_that_is_under_way_cannot_be_used_for_another_operation(pending_operations):
    pending_operations.enter(handle(3))
    with pytest.raises(UsageError, match=r"^allreduce 'a' is under way already: "):
        pending_operations.enter(handle(4))


def test_unnamed_operations_are_taken_in_their_order(pending_operations):
    learn(pending_operations, handle(3, name=None), 0)
    first, second = handle(3, name=None), handle(3, name=None)
    pending_operations.enter(first)
    pending_operations.enter(second)
    assert (first.number, second.number) == (0, 0)
    assert pending_operations.take(pack_numbers(EXECUTE, [0, 0])) == [first, second]
