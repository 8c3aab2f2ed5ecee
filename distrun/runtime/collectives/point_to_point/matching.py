"""Matching: which message is for which receive. Messages of one rank are matched in the order in which they were sent;
of several that a receive might take, the one that came first is taken, and of several receives the one that was posted
first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from distrun.runtime.collectives.point_to_point.frames import Frame
from distrun.runtime.collectives.point_to_point.transfer import Receive

Way = TypeVar("Way")
_Key = tuple[int, int]


@dataclass(eq=False)
class Arrival(Generic[Way]):
    """A message that has come, or that was offered."""

    source: int
    frame: Frame
    body: bytes | memoryview | None
    """The bytes of the message; None: it is only offered."""
    way: Way
    """The connection that it came by, for the answer."""


class Matching(Generic[Way]):
    """Receives without a message, and messages that nobody has asked for."""

    def __init__(self) -> None:
        self._posted: dict[_Key, deque[Receive]] = {}
        self._arrived: dict[_Key, deque[Arrival[Way]]] = {}

    def post(self, receive: Receive) -> Arrival[Way] | None:
        """Return the message for a receive; None: there is none yet, and the next that fits will be for it."""
        key = receive.group, receive.tag
        arrived = self._arrived.get(key)
        for arrival in arrived or ():
            if arrival.source in receive.sources:
                self._remove(self._arrived, key, arrival)
                return arrival
        self._posted.setdefault(key, deque()).append(receive)
        return None

    def arrive(self, arrival: Arrival[Way]) -> Receive | None:
        """Return the receive that a message is for; None: there is none yet, and the message is kept."""
        key = arrival.frame.group, arrival.frame.tag
        posted = self._posted.get(key)
        for receive in posted or ():
            if arrival.source in receive.sources:
                self._remove(self._posted, key, receive)
                return receive
        self._arrived.setdefault(key, deque()).append(arrival)
        return None

    def withdraw(self, receive: Receive) -> bool:
        """Take back a receive that is not matched; returns whether it was there."""
        key = receive.group, receive.tag
        if receive not in self._posted.get(key, ()):
            return False
        self._remove(self._posted, key, receive)
        return True

    def forget_group(self, group: int) -> list[Arrival[Way]]:
        """Drop what has come for a group that nobody here receives for any more, and return it."""
        keys = [key for key in self._arrived if key[0] == group]
        return [arrival for key in keys for arrival in self._arrived.pop(key)]

    def forget_offers(self, source: int) -> None:
        """Drop what a rank has only offered: it is gone. What has come can still be taken."""
        for key, arrived in list(self._arrived.items()):
            for arrival in [each for each in arrived if each.source == source and each.body is None]:
                self._remove(self._arrived, key, arrival)

    def posted(self) -> Iterator[Receive]:
        """Yield the receives that have no message yet, in the order in which they were posted for each tag."""
        for waiting in self._posted.values():
            yield from waiting

    @property
    def is_waiting(self) -> bool:
        """Whether there are such receives."""
        return bool(self._posted)

    @staticmethod
    def _remove(table: dict[_Key, deque[T]], key: _Key, item: T) -> None:
        table[key].remove(item)
        if not table[key]:
            del table[key]


T = TypeVar("T")
