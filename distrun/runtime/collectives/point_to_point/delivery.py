"""Delivery: handles each message from `send` and `receive` to its end. It has no threads, and never waits.

A small message is copied and sent at once, which ends its send (eager protocol). A large message is offered, and sent
when the receiver asks for it, straight from memory to memory (rendezvous protocol). So is a small message if the
receiver already holds `CREDIT` bytes of small messages that it has not asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from distrun.errors import CollectiveError, JobAbortedError, MismatchError
from distrun.runtime.collectives.point_to_point.connection import Connection
from distrun.runtime.collectives.point_to_point.frames import (
    BYTES,
    CREDIT,
    FAREWELL,
    GRANT,
    HEADER_SIZE,
    MESSAGE,
    OFFER,
    REFUSAL,
    WITHDRAWAL,
    Frame,
    sentence,
)
from distrun.runtime.collectives.point_to_point.matching import Arrival, Matching
from distrun.runtime.collectives.point_to_point.peer import CREDIT as MOST_CREDIT, SMALL, Peer, Peers
from distrun.runtime.collectives.point_to_point.transfer import Receive, Send, Transfer, describe
from distrun.runtime.operations import waking_clock

_LEFT = "has left the group of the message"

Ended = Callable[[Transfer, Exception | None], None]


class Delivery:
    """The messages of one rank. Its connections call the methods `on_...`."""

    def __init__(self, peers: Peers, name: Callable[[int], str], own: int, ended: Ended) -> None:
        """`name` describes a rank for error messages. `ended` is called once for each transfer that has ended, with the
        error if it has failed."""
        self.matching: Matching = Matching()
        self.under_way: set[Transfer] = set()
        """The transfers that have not ended."""
        self._left: set[int] = set()  # the groups that this rank has left
        self.has_news = False
        """Whether a connection has ended since `Departures` last looked for the reason."""
        self._peers = peers
        self._name = name
        self._own = own
        self._ended = ended
        self._number = 0

    # What this rank does ----------------------------------------------------------------------------------------------

    def send(self, send: Send) -> None:
        """Send a message."""
        peer = self._peers[send.destination]
        self.under_way.add(send)
        if peer.lost is not None:
            self._end(send, JobAbortedError(f"{self.title(send)}: {peer.lost}"))
            return
        cost = send.size + HEADER_SIZE
        if send.size <= SMALL and cost <= peer.credit:
            peer.credit -= cost
            frame = Frame(MESSAGE, send.group, send.tag, 0, send.size, send.dtype)
            peer.put(frame.pack() + send.memory)
            self._end(send, None)
            return
        self._number += 1
        send.number = self._number
        peer.offers[send.number] = send
        peer.put(Frame(OFFER, send.group, send.tag, send.number, send.size, send.dtype).pack())

    def receive(self, receive: Receive) -> None:
        """Receive a message."""
        self.under_way.add(receive)
        arrival = self.matching.post(receive)
        if arrival is not None:
            self._take(receive, arrival)
        else:
            self.fail_if_in_vain(receive)

    def withdraw(self, transfer: Transfer, error: Exception) -> None:
        """End a transfer that the caller has given up. Later messages are matched as if it had never existed."""
        if transfer.done:
            return
        if isinstance(transfer, Receive):
            if not self.matching.withdraw(transfer):
                for peer in self._peers.values():
                    for connection in peer.connections:
                        connection.abandon(transfer)
        elif isinstance(transfer, Send):
            peer = self._peers[transfer.destination]
            peer.offers.pop(transfer.number, None)
            if transfer.is_granted and peer.connections:
                # Part of its bytes may have left, and the caller may now change the rest: the stream cannot go on.
                self.lose(peer, f"{self._name(self._own)} gave up sending to it in the middle of a message")
        self._end(transfer, error)

    def leave(self, group: int) -> None:
        """Leave a group for good: its receives end, and messages that have arrived or will arrive are dropped."""
        self._left.add(group)
        for transfer in list(self.under_way):
            if transfer.group == group and isinstance(transfer, Receive):
                self.withdraw(transfer, CollectiveError(f"{self.title(transfer)}: {self._name(self._own)} {_LEFT}"))
        for arrival in self.matching.forget_group(group):
            self._drop(arrival)

    # What comes -------------------------------------------------------------------------------------------------------

    def on_frame(self, connection: Connection, frame: Frame, body: memoryview) -> None:
        """Handle a frame. `body` is what followed it, if its kind has a body. Its memory is reused after the call."""
        kind, peer = frame.kind, self._peers[connection.rank]
        if kind == MESSAGE:
            self._arrive(Arrival(connection.rank, frame, body, connection))
        elif kind == OFFER:
            self._arrive(Arrival(connection.rank, frame, None, connection))
        elif kind == GRANT:
            self._send_bytes(peer, connection, frame)
        elif kind == CREDIT:
            peer.credit += frame.size
        elif kind == REFUSAL:
            send = peer.offers.pop(frame.number, None)
            if send is not None:
                self._end(send, MismatchError(_words(body)))
        elif kind == WITHDRAWAL:
            receive = connection.granted.pop(frame.number, None)
            if receive is not None:
                self._end(receive, CollectiveError(_words(body)))
        elif kind == FAREWELL:
            peer.has_said_farewell = True

    def on_bytes(self, connection: Connection, receive: Receive) -> None:
        """Handle the end of a large message."""
        self._end(receive, None)

    def on_sent(self, connection: Connection, send: Send) -> None:
        """Handle that the last byte of a message has left."""
        self._peers[connection.rank].offers.pop(send.number, None)
        self._end(send, None)

    def on_end(self, connection: Connection, how: str) -> None:
        """Handle the end of a connection."""
        peer = self._peers[connection.rank]
        if peer.lost is None and peer.ended is None:
            peer.ended = waking_clock.now(), how
            self.has_news = True

    def _arrive(self, arrival: Arrival) -> None:
        if arrival.frame.group in self._left:
            self._drop(arrival)
            return
        receive = self.matching.arrive(arrival)
        if receive is not None:
            self._take(receive, arrival)
        elif arrival.body is not None:
            arrival.body = bytes(arrival.body)

    def _drop(self, arrival: Arrival) -> None:
        """Drop a message for a group that this rank has left, and tell the sender if it only offered it."""
        if arrival.body is not None:
            self._pay_back(arrival.connection, len(arrival.body) + HEADER_SIZE)
        elif not arrival.connection.is_closed:
            text = f"{self._name(self._own)} does not receive what {self._name(arrival.source)} sends: it {_LEFT}"
            arrival.connection.put(sentence(REFUSAL, arrival.frame.number, text))

    def _take(self, receive: Receive, arrival: Arrival) -> None:
        """Receive a message into the receive that it matches, or ask for its bytes if it is only offered."""
        frame, body, connection = arrival.frame, arrival.body, arrival.connection
        receive.source = arrival.source
        objection = self._objection(receive, arrival)
        if body is None:
            if objection:
                connection.put(sentence(REFUSAL, frame.number, objection))
            else:
                connection.granted[frame.number] = receive
                connection.put(Frame(GRANT, number=frame.number).pack())
        else:
            self._pay_back(connection, len(body) + HEADER_SIZE)
            if not objection:
                receive.memory[:] = body
                self._end(receive, None)
        if objection:
            self._end(receive, MismatchError(objection))

    def _objection(self, receive: Receive, arrival: Arrival) -> str:
        frame = arrival.frame
        if frame.size == receive.size and frame.dtype == receive.dtype:
            return ""
        sent = describe(frame.size, frame.dtype, frame.tag)
        return (
            f"{self._name(arrival.source)} has sent {sent}, and {self._name(self._own)} receives {receive.contents()}: "
            "let both give tensors of the same number of elements and dtype"
        )

    def _pay_back(self, connection: Connection, size: int) -> None:
        connection.credit_owed += size
        if connection.credit_owed >= MOST_CREDIT // 4 and not connection.is_closed:
            connection.put(Frame(CREDIT, size=connection.credit_owed).pack())
            connection.credit_owed = 0

    def _send_bytes(self, peer: Peer, connection: Connection, frame: Frame) -> None:
        send = peer.offers.get(frame.number)
        if send is None:
            text = f"{self._name(self._own)} has given up sending the message that {self._name(peer.rank)} receives"
            connection.put(sentence(WITHDRAWAL, frame.number, text))
            return
        send.is_granted = True
        connection.put(Frame(BYTES, number=send.number, size=send.size).pack(), send.memory, send)

    # Who is gone ------------------------------------------------------------------------------------------------------

    def lose(self, peer: Peer, why: str) -> None:
        """Fail the transfers that wait for a rank that is gone. Messages that it sent before can still be received."""
        peer.lost, peer.ended = why, None
        transfers: list[Transfer] = list(peer.offers.values())
        for connection in peer.connections:
            transfers += connection.unfinished()
            connection.close()
        peer.connections.clear()
        peer.offers.clear()
        peer.waiting.clear()
        self.matching.forget_offers(peer.rank)
        for transfer in transfers:
            self._end(transfer, JobAbortedError(f"{self.title(transfer)}: {why}"))
        for receive in list(self.matching.posted()):
            self.fail_if_in_vain(receive)

    def fail_if_in_vain(self, receive: Receive) -> None:
        """Fail a receive that has no message if all the ranks that it could come from are gone."""
        reasons = [self._peers[source].lost for source in receive.sources]
        if None not in reasons:
            self.matching.withdraw(receive)
            why = "; ".join(dict.fromkeys(filter(None, reasons)))
            self._end(receive, JobAbortedError(f"{self.title(receive)}: {why}"))

    def fail(self, why: str) -> None:
        """Fail all transfers and close all connections."""
        self.matching = Matching()
        for peer in self._peers.values():
            peer.offers.clear()
            peer.waiting.clear()
            for connection in peer.connections:
                connection.close()
        for transfer in list(self.under_way):
            self._end(transfer, JobAbortedError(f"{self.title(transfer)}: {why}"))

    def _end(self, transfer: Transfer, error: Exception | None) -> None:
        if transfer in self.under_way:
            self.under_way.remove(transfer)
            self._ended(transfer, error)

    def forget_names(self) -> None:
        """Drop the reference to the object that describes ranks, so that it can be freed."""
        self._name = "rank {}".format

    # For people -------------------------------------------------------------------------------------------------------

    def title(self, transfer: Transfer) -> str:
        """Return the name of a transfer for error messages: `send of 400 bytes of float32 with tag 0 to rank 1`."""
        if isinstance(transfer, Send):
            return f"send of {transfer.contents()} to rank {transfer.destination}"
        if transfer.source is not None:
            return f"receive of {transfer.contents()} from rank {transfer.source}"
        return f"receive of {transfer.contents()} from any rank"

    def waiting_for(self, transfer: Transfer) -> str:
        """Return the name of a transfer and what it waits for."""
        title = self.title(transfer)
        if isinstance(transfer, Send):
            peer = self._peers[transfer.destination]
            if transfer.is_granted:
                return f"{title}, which has begun and waits for {self._name(peer.rank)} to take it"
            if not peer.connections and peer.dial_problem:
                return f"{title}, which waits for a connection with {self._name(peer.rank)}: {peer.dial_problem}"
            return f"{title}, for which {self._name(peer.rank)} has not asked yet"
        if transfer.source is None:
            return f"{title}, none of which has sent one"
        return f"{title}, which waits for {self._name(transfer.source)}"


def _words(sentence: memoryview) -> str:
    return str(sentence, "utf-8", "replace")
