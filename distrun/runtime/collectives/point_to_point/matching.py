"""Matching: pairs messages with receives.

Messages of one rank are matched in the order they were sent. If several messages fit a receive, the first to arrive is
taken. If a message fits several receives, the first to be posted gets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from distrun.runtime.collectives.point_to_point.connection import Connection
from distrun.runtime.collectives.point_to_point.frames import Frame
from distrun.runtime.collectives.point_to_point.transfer import Receive

T = TypeVar("T")
_Key = tuple[int, int]


@dataclass(eq=False)
class Arrival:
    """A message that has arrived, or that was offered."""

    source: int
    frame: Frame
    body: bytes | memoryview | None
    """The bytes of the message, or None if it is only offered."""
    connection: Connection
    """Where it arrived, for the answer."""


class Matching:
    """Receives without a message (posted), and messages without a receive (arrived)."""

    def __init__(self) -> None:
        self._posted: dict[_Key, deque[Receive]] = {}
        self._arrived: dict[_Key, deque[Arrival]] = {}

    def post(self, receive: Receive) -> Arrival | None:
        """Return the message for a receive, or keep the receive for the next message that fits and return None."""
        key = receive.group, receive.tag
        arrived = self._arrived.get(key)
        for arrival in arrived or ():
            if arrival.source in receive.sources:
                self._remove(self._arrived, key, arrival)
                return arrival
        self._posted.setdefault(key, deque()).append(receive)
        return None

    def arrive(self, arrival: Arrival) -> Receive | None:
        """Return the receive that fits a message, or keep the message for a later receive and return None."""
        key = arrival.frame.group, arrival.frame.tag
        posted = self._posted.get(key)
        for receive in posted or ():
            if arrival.source in receive.sources:
                self._remove(self._posted, key, receive)
                return receive
        self._arrived.setdefault(key, deque()).append(arrival)
        return None

    def withdraw(self, receive: Receive) -> bool:
        """Remove a posted receive. Returns False if it is matched already."""
        key = receive.group, receive.tag
        if receive not in self._posted.get(key, ()):
            return False
        self._remove(self._posted, key, receive)
        return True

    def forget_group(self, group: int) -> list[Arrival]:
        """Drop the messages that have arrived for a group that this rank has left, and return them."""
        keys = [key for key in self._arrived if key[0] == group]
        return [arrival for key in keys for arrival in self._arrived.pop(key)]

    def forget_offers(self, source: int) -> None:
        """Drop the offers of a rank that is gone. Messages whose bytes have arrived can still be received."""
        for key, arrived in list(self._arrived.items()):
            for arrival in [each for each in arrived if each.source == source and each.body is None]:
                self._remove(self._arrived, key, arrival)

    def posted(self) -> Iterator[Receive]:
        """Yield the receives that have no message yet, for each group and tag in the order they were posted."""
        for waiting in self._posted.values():
            yield from waiting

    @staticmethod
    def _remove(table: dict[_Key, deque[T]], key: _Key, item: T) -> None:
        table[key].remove(item)
        if not table[key]:
            del table[key]
