"""Ranks that have ended without calling init, which ranks of other hosts may wait for."""

from __future__ import annotations

from collections.abc import Callable

from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.supervision import events

_DELAY = 0.5  # seconds; by then the job may be over, and otherwise several ranks go in one frame


class Departures:
    """Notes these ranks, and tells the agents. Their own host's agent knows already."""

    def __init__(self, broadcast: Callable[[Frame], None], is_needed: bool) -> None:
        """Args: sends all agents a frame; whether there are several hosts."""
        self._broadcast = broadcast
        self._is_needed = is_needed
        self._untold: list[int] = []
        self.due = float("inf")
        """When `tell` is to be called."""

    def note(self, event: events.Event, now: float) -> None:
        """Take note of an event, if it is the end of such a rank."""
        if self._is_needed and isinstance(event, events.RankExited) and event.exit.has_departed:
            self._untold.append(event.rank)
            self.due = min(self.due, now + _DELAY)

    def tell(self, now: float) -> None:
        """Tell the agents what they do not know, if it is due."""
        if now >= self.due:
            payload = " ".join(map(str, self._untold)).encode()
            self._broadcast(Frame(FrameKind.DEPARTED, payload=payload))
            self._untold, self.due = [], float("inf")
