"""The delivery of messages, between two ranks whose connection is a list."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, strategies as st

from distrun.errors import CollectiveError, JobAbortedError, MismatchError, StallError
from distrun.runtime.collectives.point_to_point.delivery import Delivery
from distrun.runtime.collectives.point_to_point.frames import BYTES, HEADER_SIZE, unpack
from distrun.runtime.collectives.point_to_point.peer import CREDIT, SMALL, Peers
from distrun.runtime.collectives.point_to_point.transfer import Receive, Send, Transfer, group_number

LARGE = SMALL + 1


class Wire:
    """One end of a connection in this process; has what a `Delivery` needs of one."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.is_closed = self.is_sending = False
        self.granted: dict[int, Receive] = {}
        self.credit_owed = 0
        self.sent: deque[tuple[bytes, memoryview | None, Send | None]] = deque()

    def put(self, frame: bytes, body: memoryview | None = None, send: Send | None = None) -> None:
        if not self.is_closed:
            self.sent.append((frame, body, send))

    def unfinished(self) -> list[Receive]:
        return list(self.granted.values())

    def abandon(self, receive: Receive) -> None:
        for number, each in self.granted.items():
            if each is receive:
                self.granted[number] = Receive(memoryview(bytearray(receive.size)), (), "", 0, "")

    def close(self) -> None:
        self.is_closed = True


class Rank:
    """One of the two."""

    def __init__(self, own: int) -> None:
        self.peers = Peers(own, 2)
        self.delivery = Delivery(self.peers, "rank {}".format, own, Transfer.ended)
        self.wire = Wire(1 - own)
        self.peers[1 - own].attach(self.wire)
        self.other = 1 - own

    def send(self, data: bytes, tag: int = 0, dtype: str = "uint8") -> Send:
        send = Send(memoryview(bytearray(data)), self.other, "g", tag, dtype)
        self.delivery.send(send)
        return send

    def receive(self, size: int, tag: int = 0, dtype: str = "uint8") -> Receive:
        receive = Receive(memoryview(bytearray(size)), [self.other], "g", tag, dtype)
        self.delivery.receive(receive)
        return receive

    def take(self, other: Rank) -> bool:
        """Handle the next frame that the other has sent; False if there is none."""
        if not other.wire.sent:
            return False
        data, body, send = other.wire.sent.popleft()
        frame = unpack(data)
        if frame.kind != BYTES:
            self.delivery.on_frame(self.wire, frame, memoryview(data)[HEADER_SIZE:])
            return True
        receive = self.wire.granted.pop(frame.number)
        receive.memory[:] = body
        other.delivery.on_sent(other.wire, send)
        self.delivery.on_bytes(self.wire, receive)
        return True


@pytest.fixture
def pair() -> tuple[Rank, Rank]:
    return Rank(0), Rank(1)


def settle(pair: tuple[Rank, Rank]) -> None:
    """Let everything arrive that is under way."""
    one, two = pair
    while one.take(two) or two.take(one):
        pass


def outcome(transfer: Transfer) -> str:
    assert transfer.done
    return str(transfer.error)


def test_a_small_message_has_left_at_once_and_a_large_one_when_it_is_asked_for(pair):
    one, two = pair
    small, large = one.send(b"x" * SMALL), one.send(b"y" * LARGE)
    assert small.done
    settle(pair)
    assert not large.done
    first, second = two.receive(SMALL), two.receive(LARGE)
    settle(pair)
    assert large.done
    assert bytes(first.memory) == b"x" * SMALL
    assert bytes(second.memory) == b"y" * LARGE
    assert first.source == 0
    assert not one.delivery.under_way
    assert not two.delivery.under_way


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize(("wanted", "dtype"), [(-1, "uint8"), (1, "uint8"), (0, "int8")])
def test_another_size_or_dtype_is_an_error_and_the_next_message_is_not_lost(pair, size, wanted, dtype):
    one, two = pair
    sends = [one.send(b"1" * size), one.send(b"2" * size)]
    wrong, right = two.receive(size + wanted, dtype=dtype), two.receive(size)
    settle(pair)
    assert isinstance(wrong.error, MismatchError)
    said = outcome(wrong)
    assert f"rank 0 has sent {size} bytes of uint8 with tag 0" in said
    assert f"rank 1 receives {size + wanted} bytes of {dtype}" in said
    assert bytes(right.memory) == b"2" * size
    assert (outcome(sends[0]) == said) if size == LARGE else sends[0].error is None
    assert sends[1].done
    assert sends[1].error is None


def test_what_a_group_leaves_behind_ends_and_is_dropped_whenever_it_comes(pair):
    one, two = pair
    mine = two.receive(LARGE)
    small = [one.send(bytes(SMALL), tag=1)]
    large = [one.send(bytes(LARGE), tag=1)]
    settle(pair)
    two.delivery.leave(group_number("g"))
    assert "receive of" in outcome(mine)
    assert "rank 1 has left the group" in outcome(mine)
    for _ in range(100):
        small.append(one.send(bytes(SMALL), tag=1))
        settle(pair)
    assert all(send.done and send.error is None for send in small)  # the credit comes back
    large.append(one.send(bytes(LARGE)))
    settle(pair)
    for send in large:
        assert "it has left the group of the message" in outcome(send)
    assert not one.delivery.under_way
    assert not two.delivery.under_way
    assert not two.delivery.matching._arrived


def test_small_messages_are_offered_when_the_credit_is_used_up_and_credit_comes_back(pair):
    one, two = pair
    sends = [one.send(bytes(SMALL)) for _ in range(100)]
    sent = sum(send.done for send in sends)
    assert (CREDIT - SMALL) // (SMALL + HEADER_SIZE) <= sent <= CREDIT // SMALL
    for _ in sends:
        two.receive(SMALL)
    settle(pair)
    assert all(send.done for send in sends)
    assert one.peers[1].credit > CREDIT // 2


def test_who_asks_for_a_message_that_was_given_up_is_told_so(pair):
    one, two = pair
    send = one.send(bytes(LARGE))
    settle(pair)
    one.delivery.withdraw(send, StallError("too late"))
    receive = two.receive(LARGE)
    settle(pair)
    assert isinstance(receive.error, CollectiveError)
    assert outcome(receive) == "rank 0 has given up sending the message that rank 1 receives"
    assert outcome(send) == "too late"


@pytest.mark.parametrize("has_begun", [False, True])
def test_the_memory_of_a_receive_that_was_given_up_is_left_alone(pair, has_begun):
    one, two = pair
    given_up = two.receive(LARGE)
    send = one.send(b"1" * LARGE) if has_begun else None
    if has_begun:
        assert two.take(one)  # it asks for it
    two.delivery.withdraw(given_up, StallError("too late"))
    if send is None:
        send = one.send(b"1" * LARGE)
        receive = two.receive(LARGE)
    settle(pair)
    assert send.done
    assert bytes(given_up.memory) == bytes(LARGE)
    assert has_begun or bytes(receive.memory) == b"1" * LARGE


def test_what_waits_for_a_rank_that_is_gone_ends_and_what_has_come_can_be_received(pair):
    one, two = pair
    waiting, offered = two.receive(5, tag=1), two.send(bytes(LARGE))
    one.send(b"kept")
    one.send(bytes(LARGE), tag=2)
    settle(pair)
    two.delivery.lose(two.peers[0], "rank 0 has left")
    for transfer in (waiting, offered, two.receive(LARGE, tag=2), two.send(b"x")):
        assert isinstance(transfer.error, JobAbortedError)
        assert outcome(transfer).endswith("rank 0: rank 0 has left")
    assert bytes(two.receive(4).memory) == b"kept"
    assert isinstance(two.receive(4).error, JobAbortedError)


def test_a_failure_ends_everything(pair):
    one, two = pair
    transfers = [two.receive(5), two.send(bytes(LARGE)), two.receive(LARGE, tag=1)]
    one.send(bytes(LARGE), tag=1)
    assert two.take(one)  # it asks for it
    two.delivery.fail("the world is over")
    assert all(outcome(transfer).endswith("the world is over") for transfer in transfers)
    assert not two.delivery.under_way


_MOVES = st.lists(
    st.tuples(st.sampled_from(["send", "receive", "carry"]), st.integers(0, 1), st.integers(0, 2), st.booleans()),
    max_size=80,
)


@given(_MOVES)
def test_messages_of_a_tag_come_in_order_whatever_happens_when(moves):
    pair = Rank(0), Rank(1)
    sizes = {(rank, tag): [] for rank in range(2) for tag in range(3)}  # of what was sent, by sender
    wanted: dict[tuple[int, int], list[tuple[Receive, int]]] = {key: [] for key in sizes}
    for move, place, tag, is_large in moves:
        rank, other = pair[place], pair[1 - place]
        if move == "send":
            number = len(sizes[place, tag])
            size = LARGE + number if is_large else number
            sizes[place, tag].append(size)
            rank.send(bytes([number]) * size, tag)
        elif move == "carry":
            rank.take(other)
        else:
            key = 1 - place, tag
            if len(wanted[key]) < len(sizes[key]):
                number = len(wanted[key])
                wanted[key].append((rank.receive(sizes[key][number], tag), number))
    for (source, tag), there in sizes.items():
        for number in range(len(wanted[source, tag]), len(there)):
            wanted[source, tag].append((pair[1 - source].receive(there[number], tag), number))
    settle(pair)
    for received in wanted.values():
        for receive, number in received:
            assert receive.done
            assert receive.error is None
            assert bytes(receive.memory) == bytes([number]) * receive.size
