"""Pending operations without other ranks: the test stands for the submitters and for the negotiator."""

from __future__ import annotations

from typing import Any, cast

import pytest

from distrun.errors import UsageError
from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.decisions import Define
from distrun.runtime.negotiation.messages import EXECUTE, LARGEST_REQUEST, pack_ids
from distrun.runtime.negotiation.pending import PendingOperations
from distrun.runtime.operations.handle import Handle
from distrun.runtime.operations.request import FORM_PROCESS_SET, JOIN_NAME, Request
from distrun.runtime.transport.shared_memory.mailbox import LARGEST


def handle(*shape: int, name: str | None = "a") -> Handle:
    return Handle(cast(Any, None), Request("allreduce", name, "float32", (shape,)), ())


@pytest.fixture
def pending_operations() -> PendingOperations:
    return PendingOperations(1 << 20)


def taken(operations: PendingOperations) -> list[Handle]:
    """The operations that are sent to the coordinator now."""
    handles = []
    while operations.outbox:
        handles.append(operations.outbox[0])
        if handles[-1].request.name is None:
            operations.place(handles[-1])
        operations.outbox.popleft()
    return handles


def submit(operations: PendingOperations, made: Handle) -> Handle:
    operations.enter(made)
    assert taken(operations) == [made]
    return made


def executed(operations: PendingOperations) -> list[list[Handle]]:
    """The batches that have been decided, which are executed now."""
    batches = list(operations.decided)
    operations.decided.clear()
    return batches


def learn(operations: PendingOperations, made: Handle, cache_id: int) -> None:
    """The operation was submitted by its full request, and executed under a new cache id."""
    submit(operations, made)
    assert made.full_request
    operations.decide_new(made.request, cache_id)
    assert executed(operations) == [[made]]


def test_two_requests_that_take_turns_under_one_name_are_sent_in_full_once_each(pending_operations):
    learn(pending_operations, handle(3), 0)
    learn(pending_operations, handle(4), 1)
    for shape, cache_id in ((3, 0), (4, 1), (3, 0), (3, 0), (4, 1)):
        again = submit(pending_operations, handle(shape))
        assert (again.cache_id, again.full_request) == (cache_id, b"")
        pending_operations.decide(pack_ids(EXECUTE, [cache_id]))
        assert executed(pending_operations) == [[again]]
    assert pending_operations.is_empty


def test_all_cache_ids_that_a_name_has_stood_for_are_known(pending_operations):
    learn(pending_operations, handle(3), 0)
    learn(pending_operations, handle(3, name="b"), 1)
    learn(pending_operations, handle(4), 2)
    assert pending_operations.cache_ids_of((0, "a")) == [0, 2]


def test_a_name_that_is_under_way_cannot_be_used_for_another_operation(pending_operations):
    pending_operations.enter(handle(3))
    with pytest.raises(UsageError, match=r"^allreduce 'a' is under way already: "):
        pending_operations.enter(handle(4))


def test_unnamed_operations_are_decided_in_their_order(pending_operations):
    learn(pending_operations, handle(3, name=None), 0)
    first, second = handle(3, name=None), handle(3, name=None)
    pending_operations.enter(first)
    pending_operations.enter(second)
    assert (first.cache_id, second.cache_id) == (0, 0)
    assert taken(pending_operations) == [first, second]
    assert (first.title, second.title) == ("unnamed allreduce (number 1)", "unnamed allreduce (number 2)")
    pending_operations.decide(pack_ids(EXECUTE, [0, 0]))
    assert executed(pending_operations) == [[first, second]]  # fused


def test_an_unnamed_operation_has_the_place_in_the_order_in_which_the_coordinator_hears_of_it(pending_operations):
    """A signal handler may submit between any two lines of a submission that it has interrupted."""
    interrupted, by_the_handler = handle(3, name=None), handle(4, name=None)
    pending_operations.enter(by_the_handler)
    pending_operations.enter(interrupted)
    assert [made.key for made in taken(pending_operations)] == [(0, 0), (0, 1)]
    pending_operations.decide_new(by_the_handler.request, 0)
    pending_operations.decide_new(interrupted.request, 1)
    assert executed(pending_operations) == [[by_the_handler], [interrupted]]


def test_what_is_finished_by_a_message_frees_its_name_before_it_is_done(pending_operations):
    learn(pending_operations, handle(3), 0)
    made = submit(pending_operations, handle(3))
    pending_operations.finish(pending_operations.next_of(0))
    assert not pending_operations.pending
    assert not pending_operations.is_empty
    pending_operations.enter(handle(3))
    assert pending_operations.finished == [made]


def test_a_batch_that_fails_stays_for_whoever_fails_the_rest(pending_operations):
    learn(pending_operations, handle(3), 0)
    learn(pending_operations, handle(3, name="b"), 1)
    executing, decided = submit(pending_operations, handle(3)), submit(pending_operations, handle(3, name="b"))
    pending = submit(pending_operations, handle(3, name="c"))
    unnamed = handle(3, name=None)
    pending_operations.enter(unnamed)
    pending_operations.decide(pack_ids(EXECUTE, [0]))
    pending_operations.decide(pack_ids(EXECUTE, [1]))
    assert pending_operations.decided[0] == [executing]
    assert {id(made) for made in pending_operations.take_all()} == set(map(id, (executing, decided, pending, unnamed)))
    assert pending_operations.is_empty


def test_what_is_done_when_its_batch_is_interrupted_is_not_failed(pending_operations):
    learn(pending_operations, handle(3), 0)
    made = submit(pending_operations, handle(3))
    pending_operations.decide(pack_ids(EXECUTE, [0]))
    pending_operations.decided[0][0].done = True
    assert pending_operations.take_all() == []
    assert made.error is None


def test_a_request_that_fits_no_message_is_refused_where_it_is_submitted(pending_operations):
    """The largest request accepted fits a mailbox with its message's letter and the cache id of its decision."""
    room = LARGEST_REQUEST - len(handle(3, name="").request.encode("x.py"))
    made = handle(3, name="n" * room)
    made.site = "x.py"
    pending_operations.enter(made)
    assert len(messages.FULL_REQUEST + made.full_request) <= LARGEST
    assert len(messages.pack_decision(Define(7, made.request))) <= LARGEST
    larger = handle(3, name="n" * (room + 1))
    larger.site = "x.py"
    with pytest.raises(UsageError, match=f"a request of {LARGEST_REQUEST + 1} bytes is too large to negotiate"):
        pending_operations.enter(larger)


def test_a_set_that_others_form_under_the_name_of_ours_is_not_taken_for_it(pending_operations):
    ours, theirs = (Request(FORM_PROCESS_SET, "s", "int64", (ranks,)) for ranks in [(0,), (1,)])
    made = submit(pending_operations, Handle(cast(Any, None), ours, ()))
    for request in (theirs, ours):
        pending_operations.decide_new(request, -1, 1)
    (first,), (second,) = executed(pending_operations)
    assert (first.request, first.stands_in) == (theirs, True)
    assert second is made
    assert pending_operations.is_empty


def test_another_thread_enters_an_operation_while_it_is_asked_whether_only_joins_wait(pending_operations):
    class Name(str):
        """A name at whose comparison the other thread gets its turn, once."""

        __hash__ = str.__hash__

        def __eq__(self, other):
            pending_operations.pending.setdefault((0, "entered meanwhile"), handle(3, name="entered meanwhile"))
            return str(self) == other

    pending_operations.pending[0, Name(JOIN_NAME)] = handle(3, name=JOIN_NAME)
    assert pending_operations.has_joined_only
    assert not pending_operations.has_joined_only
