"""Eager messages between two ranks: what they have both offered begins without a decision, and in one order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
import pytest
from histories.negotiating_rank import Rank
from hypothesis import example, given, strategies as st
from session.hypothesis_profiles import examples

from distrun.errors import MismatchError, StallError
from distrun.runtime.negotiation import messages
from distrun.runtime.negotiation.eager.piggyback import SMALL_PAIR
from distrun.runtime.negotiation.eager.withdrawal import ANSWER_TIME
from distrun.runtime.negotiation.inquiries import WHO
from distrun.runtime.negotiation.messages import pack_ids
from distrun.runtime.operations.handle import Handle

SMALL, LARGE = 2, SMALL_PAIR // 4 + 1
"""Elements of an array that travels along with its message, and of one that does not."""


def offer(cache_id: int) -> bytes:
    return messages.PIGGYBACK + bytes(3) + cache_id.to_bytes(4, "little")


def two_ranks(count: int = LARGE, *names: str | None, swaps: bool = False) -> tuple[Rank, Rank]:
    """A coordinator and another rank that know requests of these names (without any: "a"), with arrays of `count`
    elements."""
    ranks = Rank(0, hosts=True, offers=True, swaps=swaps), Rank(1, hosts=True, offers=True, swaps=swaps)
    for rank in ranks:
        rank.learn(*[rank.submit(name, count=count) for name in names or ("a",)])
    return ranks


def test_two_offers_that_cross_need_no_decision():
    ranks = two_ranks()
    handles = [rank.submit("a", count=LARGE) for rank in ranks]
    for rank in ranks:
        assert rank.posted() == [(1 - rank.rank, offer(0))]
    for rank, handle in zip(ranks, handles, strict=True):
        rank.hear(1 - rank.rank, offer(0))
        assert rank.decided() == [[handle]]
        assert rank.sent() == []
        assert rank.operations.is_empty


def test_nothing_is_offered_while_something_else_is_under_way():
    _, other = two_ranks()
    other.submit("unknown")
    other.posted()
    other.submit("a", count=LARGE)
    assert other.posted() == [(0, pack_ids(messages.CACHE_IDS, [0]))]


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_what_is_to_be_given_up_is_no_longer_offered(count):
    coordinator, other = two_ranks(count)
    handle = coordinator.submit("a", count=count)
    ((_, offered),) = coordinator.posted()
    other.hear(0, offered)
    inquiry = coordinator.ask(handle, f"took too long: {WHO}")
    assert coordinator.sent() == [(1, messages.WITHDRAW)]
    assert coordinator.control.alarmed == [1]
    assert not inquiry.done
    other.hear(0, messages.WITHDRAW)
    assert other.sent() == [(0, messages.WITHDRAWN)]
    coordinator.hear(1, messages.WITHDRAWN)
    assert coordinator.finished() == [handle]
    assert str(handle.error).startswith("allreduce 'a' took too long: submitted by rank 0 (at ")
    late = other.submit("a", count=count)
    ((_, offered),) = other.posted()
    assert other.decided() == other.finished() == []
    coordinator.hear(1, offered)
    ((_, failure),) = coordinator.sent()
    other.hear(0, failure)
    assert other.finished() == [late]
    assert str(late.error) == str(handle.error)


def test_an_offer_that_crosses_with_its_withdrawal_is_met():
    coordinator, other = two_ranks()
    handle = coordinator.submit("a", count=LARGE)
    coordinator.posted()
    inquiry = coordinator.ask(handle, "took too long")
    late = other.submit("a", count=LARGE)
    assert other.posted() == [(0, offer(0))]
    other.hear(0, offer(0), messages.WITHDRAW)
    assert other.decided() == [[late]]
    coordinator.hear(1, offer(0), messages.WITHDRAWN)
    assert coordinator.decided() == [[handle]]
    assert inquiry.answer == ""


def test_a_rank_that_does_not_drop_the_offers_in_time_is_not_waited_for():
    coordinator, _ = two_ranks()
    handle = coordinator.submit("a", count=LARGE)
    coordinator.posted()
    inquiry = coordinator.ask(handle, "took too long")
    assert coordinator.finished() == []
    assert coordinator.negotiator.next_look(coordinator.now) == coordinator.now + ANSWER_TIME
    coordinator.now += ANSWER_TIME
    assert coordinator.negotiator.next_look(coordinator.now) == coordinator.now
    assert not coordinator.negotiator.is_idle
    coordinator.negotiator.progress()
    assert inquiry.done
    assert str(inquiry.answer).endswith("not by <1>")
    assert coordinator.finished() == []  # the other rank may yet do it
    coordinator.hear(1, messages.WITHDRAWN)
    assert coordinator.finished() == [handle]


def test_an_offer_that_was_made_before_another_operation_was_given_up_crosses_all_the_same():
    coordinator, other = two_ranks(SMALL, "a", "b")
    coordinator.hear(1, *[message for _, message in given_up_by(other, other.submit("a"))])
    late = other.submit("b", 2.0)
    ((_, theirs),) = other.posted()
    ((_, failure),) = coordinator.sent()
    handle = coordinator.submit("b")
    ((_, ours),) = coordinator.posted()
    other.hear(0, failure, ours)
    coordinator.hear(1, theirs)
    assert late in other.finished()
    assert coordinator.finished() == [handle]
    assert handle.outputs[0].tolist() == late.outputs[0].tolist() == [3.0] * SMALL


def given_up_by(rank: Rank, handle: Handle) -> list[tuple[int, bytes]]:
    """Let a rank submit an operation and ask to give it up, and return what it sends."""
    sent = rank.posted()
    rank.ask(handle, "took too long")
    return [*sent, *rank.sent()]


def test_the_array_of_what_was_given_up_does_not_serve_the_next_operation():
    coordinator, other = two_ranks(SMALL, None)
    ((_, withdrawal),) = given_up_by(coordinator, coordinator.submit(None))[1:]
    other.hear(0, withdrawal)
    coordinator.hear(1, *[message for _, message in other.sent()])
    assert len(coordinator.finished()) == 1
    for value in (10.0, 2.0):  # two without a name: the first is offered, with its array, and the other is not
        other.submit(None, value)
        coordinator.control.inbox.extend((1, message) for _, message in other.posted())
    coordinator.negotiator.progress()
    handle = coordinator.submit(None)
    coordinator.negotiator.progress()
    assert coordinator.finished() == []
    assert coordinator.decided() == [[handle]]


@pytest.mark.parametrize("swaps", [False, True])
def test_a_caller_that_waits_finds_the_offer_that_comes_while_it_looks(swaps):
    for rank in two_ranks(swaps=swaps):
        handle = rank.submit("a", count=LARGE)
        rank.control.look = lambda rank=rank: rank.control.inbox.append((1 - rank.rank, offer(0)))
        assert rank.negotiator.cross()
        assert rank.sent() == [(1 - rank.rank, offer(0))]
        assert rank.decided() == [[handle]]
        assert rank.operations.is_empty


def test_the_shortcut_is_for_an_operation_alone():
    coordinator, other = two_ranks()
    other.submit("unknown")
    assert not other.negotiator.cross()  # it has no cache id
    other.posted()
    other.submit("a", count=LARGE)
    assert not other.negotiator.cross()
    assert other.sent() == []
    coordinator.submit("a", count=LARGE)
    coordinator.control.inbox.append((1, offer(0)))
    assert not coordinator.negotiator.cross()
    assert coordinator.sent() == []


def test_what_was_offered_in_vain_is_decided_like_any_other():
    coordinator, other = two_ranks()
    theirs = coordinator.submit("a", count=LARGE)
    coordinator.negotiator.progress()
    coordinator.sent()
    other.submit("unknown")
    ours = other.submit("a", count=LARGE)
    other.negotiator.progress()
    assert (0, pack_ids(messages.CACHE_IDS, [0])) in other.sent()
    other.hear(0, offer(0))
    assert other.decided() == []
    coordinator.hear(1, pack_ids(messages.CACHE_IDS, [0]))
    assert coordinator.sent() == [(1, pack_ids(messages.EXECUTE, [0]))]
    other.hear(0, pack_ids(messages.EXECUTE, [0]))
    assert (coordinator.decided(), other.decided()) == ([[theirs]], [[ours]])


def test_a_caller_whose_offer_is_not_met_goes_on_in_the_ordinary_way():
    coordinator, other = two_ranks()
    handles = [rank.submit("a", count=LARGE) for rank in (coordinator, other)]
    assert not coordinator.negotiator.cross()
    assert not other.negotiator.cross()
    coordinator.hear(1, offer(0))
    other.hear(0, offer(0))
    assert (coordinator.decided(), other.decided()) == ([[handles[0]]], [[handles[1]]])
    assert coordinator.sent() == [(1, offer(0))]
    assert other.sent() == [(0, offer(0))]


def test_another_message_than_the_offer_is_left_for_the_ordinary_way():
    coordinator, _ = two_ranks()
    handle = coordinator.submit("a", count=LARGE)
    coordinator.control.look = lambda: coordinator.control.inbox.append((1, pack_ids(messages.CACHE_IDS, [0])))
    assert not coordinator.negotiator.cross()
    coordinator.negotiator.progress()
    assert coordinator.decided() == [[handle]]
    assert coordinator.sent() == [(1, offer(0)), (1, pack_ids(messages.EXECUTE, [0]))]


@pytest.mark.parametrize("swaps", [False, True])
def test_small_arrays_are_added_up_on_both_ranks(swaps):
    ranks = two_ranks(SMALL, swaps=swaps)
    for rank in ranks:
        handle = rank.submit("a", 1.0 + rank.rank)
        other = np.full(SMALL, 2.0 - rank.rank, np.float32).tobytes()
        rank.control.look = lambda rank=rank, other=other: rank.control.inbox.append((1 - rank.rank, offer(0) + other))
        assert rank.negotiator.cross()
        assert rank.finished() == [handle]
        assert handle.outputs[0].tolist() == [3.0] * SMALL


NAMES = ("a", "b", None)
steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "post", "post", "call", "call", "hear", "hear", "hear", "ask", "give up"]),
        st.integers(0, 1),
        st.sampled_from(NAMES),
        st.sampled_from([LARGE, LARGE, LARGE, SMALL]),
    ),
    min_size=10,
    max_size=50,
)


class Pair:
    """Two ranks, between which messages and operations take their time."""

    def __init__(self, known: Sequence[str | None] = NAMES, swaps: bool = False) -> None:
        """`known`: the names of requests that have cache ids."""
        self.ranks = Rank(0, hosts=True, offers=True, swaps=swaps), Rank(1, hosts=True, offers=True, swaps=swaps)
        self.under_way: list[deque[bytes]] = [deque(), deque()]  # to each rank
        self.ends: tuple[list[tuple[str | None, str, int]], ...] = ([], [])  # how each name ended, in turn, and sizes
        self.executed: tuple[list[str | None], ...] = ([], [])
        self.counts: tuple[Counter[str | None], ...] = (Counter(), Counter())  # what each rank has submitted
        for rank in self.ranks:
            rank.control.look = lambda rank=rank: self.carry(rank.rank)
        for name in known:
            for count in (SMALL, LARGE):
                for rank in (0, 1):
                    self.submit(rank, name, count)
                self.settle()

    def submit(self, rank: int, name: str | None, count: int) -> Handle | None:
        operations = self.ranks[rank].operations
        decided = [each for batch in operations.decided for each in self.names_of(batch)]
        if name and ((0, name) in operations.pending or name in decided):
            return None
        place = self.counts[rank][name]
        self.counts[rank][name] += 1
        handle = self.ranks[rank].submit(name, 1.0 + rank + 10 * place, count)
        handle.given = 3.0 + 20 * place
        return handle

    def call(self, rank: int, name: str | None, count: int) -> None:
        """A caller waits for what it submits, and the other rank's messages may come while it looks."""
        handle = self.submit(rank, name, count)
        if handle is not None and not self.ranks[rank].operations.decided:
            self.ranks[rank].negotiator.cross()
            self.take(rank)

    def progress(self, rank: int) -> None:
        """A rank that executes something makes no other progress until the other executes the same."""
        if not self.ranks[rank].operations.decided:
            self.ranks[rank].negotiator.progress()
            self.take(rank)

    def ask(self, rank: int, name: str | None, why: str = "") -> None:
        """A rank asks who is missing in an operation, and to give it up if it gives a reason."""
        pending = self.ranks[rank].operations.pending.values()
        handle = next((handle for handle in pending if handle.request.name == name), None)
        if handle is not None and not self.ranks[rank].operations.decided:
            self.ranks[rank].ask(handle, why)
            self.take(rank)

    def take(self, rank: int) -> None:
        for handle in self.ranks[rank].finished():
            handle.done = True
            self.ends[rank].append((handle.request.name, self.end_of(handle), handle.inputs[0].size))
        for _, message in self.ranks[rank].sent():
            self.under_way[1 - rank].append(message)
        self.execute()

    def end_of(self, handle: Handle) -> str:
        if handle.error is not None:
            assert isinstance(handle.error, MismatchError | StallError)
            return type(handle.error).__name__
        assert (handle.outputs[0] == handle.given).all()
        return "executed"

    def execute(self) -> None:
        first, second = (rank.operations.decided for rank in self.ranks)
        while first and second:
            assert self.names_of(first[0]) == self.names_of(second[0]), "both wait, each in another operation"
            for rank, batches in enumerate((first, second)):
                for handle in batches.popleft():
                    handle.done = True
                    self.executed[rank].append(handle.request.name)
                    self.ends[rank].append((handle.request.name, "executed", handle.inputs[0].size))

    def submitted(self, rank: int, name: str | None) -> list[int]:
        """The sizes of what has been submitted under a name."""
        handles = self.ranks[rank].operations.pending.values()
        pending = [handle.inputs[0].size for handle in handles if handle.request.name == name]
        return [size for of, _, size in self.ends[rank] if of == name] + pending

    def names_of(self, batch: list[Handle]) -> list[str | None]:
        return [handle.request.name for handle in batch]

    def hear(self, rank: int, count: int = 1) -> None:
        self.carry(rank, count)
        self.progress(rank)

    def carry(self, rank: int, count: int = 1) -> None:
        """Messages arrive, which the rank has not looked at yet."""
        for _, message in self.ranks[1 - rank].sent():
            self.under_way[rank].append(message)
        for _ in range(min(count, len(self.under_way[rank]))):
            self.ranks[rank].control.inbox.append((1 - rank, self.under_way[rank].popleft()))

    def settle(self) -> None:
        """All messages arrive."""
        for _ in range(50):
            for rank in (0, 1):
                self.hear(rank, 100)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_an_offer_does_not_outlive_an_operation_that_the_other_rank_submitted_in_full(ahead, count):
    pair = Pair(known=())
    for rank in (ahead, ahead, 1 - ahead, 1 - ahead, ahead):  # the fourth is known by then, and offered
        pair.submit(rank, None, count)
        if pair.counts[ahead][None] > 1:
            pair.settle()
    assert [len(ends) for ends in pair.ends] == [2, 2]
    pair.submit(1 - ahead, None, count)
    pair.settle()
    assert [len(ends) for ends in pair.ends] == [3, 3]
    assert all(rank.negotiator._eager._piggyback.is_unused for rank in pair.ranks)


CROSSED = [("post", 0, "a", LARGE), ("post", 1, "a", SMALL), ("call", 0, "b", SMALL), ("call", 1, "b", SMALL)]
LATE = [("hear", 0, None, SMALL), ("hear", 1, None, SMALL), ("submit", 1, None, LARGE)]


@examples(gate=100, full=2000)
@given(steps, st.booleans(), st.booleans())
# A withdrawal that spares what has crossed, one that comes after a newer offer, and no offers after a give-up.
@example([*CROSSED, ("ask", 0, "a", SMALL)], True, False)
@example([("call", 0, None, SMALL), ("ask", 0, None, SMALL), ("call", 0, "a", SMALL)], True, False)
@example([("call", 1, None, SMALL), LATE[0], ("give up", 1, None, SMALL), *LATE], True, False)
def test_two_ranks_execute_the_same_in_one_order_and_all_that_both_submit(history, are_known, swaps):
    pair = Pair(NAMES if are_known else (), swaps)
    for what, rank, name, count in history:
        if what == "hear":
            pair.hear(rank)
        elif what == "call":
            pair.call(rank, name, count)
        elif what == "ask":
            pair.ask(rank, name)
        elif what == "give up":  # those with names never are
            pair.ask(rank, None, "took too long")
        else:
            pair.submit(rank, name, count)
            if what == "post":
                pair.progress(rank)
    pair.settle()
    for name in NAMES:  # what only one rank has submitted
        for rank in (0, 1):
            for count in pair.submitted(1 - rank, name)[len(pair.submitted(rank, name)) :]:
                pair.submit(rank, name, count)
                pair.settle()
    for rank in pair.ranks:
        assert rank.operations.is_empty
        assert rank.negotiator._eager._piggyback.is_unused
        assert rank.operations._places.get(0, 0) == pair.ranks[0].negotiator._controller._matchings[0].unnamed
    assert pair.executed[0] == pair.executed[1]
    for name in NAMES:
        of_rank = [
            [(end, size if end == "executed" else 0) for of, end, size in pair.ends[rank] if of == name]
            for rank in (0, 1)
        ]
        if not are_known:  # a mismatch may end on one rank before what was decided is executed
            of_rank = list(map(sorted, of_rank))
        assert of_rank[0] == of_rank[1]
