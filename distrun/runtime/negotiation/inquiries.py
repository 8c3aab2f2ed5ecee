"""Inquiries: a rank that gives up an operation asks the coordinator which ranks have not submitted it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.handle import Handle

ANSWER_TIME = 2.0
"""Seconds that the coordinator has for its answer."""


class Inquiry:
    """A question to the coordinator; engines can wait for it."""

    def __init__(self, handle: Handle) -> None:
        """`handle`: the operation that it is about."""
        self._handle = handle
        self.answer: str | None = None
        """The ranks that have submitted it and those that have not; empty if all have, None until it is known."""
        self.deadline = waking_clock.now() + ANSWER_TIME

    @property
    def key(self) -> Key:
        """The operation's, once the coordinator has been told of the operation."""
        return self._handle.key

    @property
    def done(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.answer is not None or self._handle.done or waking_clock.now() >= self.deadline

    @property
    def title(self) -> str:
        """The operation, as messages call it."""
        return self._handle.title


class Inquiries:
    """The inquiries of one rank."""

    def __init__(self) -> None:
        self.new: deque[Inquiry] = deque()
        """Inquiries that have not been sent; any thread may append one."""
        self._sent: list[Inquiry] = []

    def send(self, ask: Callable[[Key], None]) -> None:
        """Ask what is new; `answered` may be called before `ask` returns."""
        while self.new:
            inquiry = self.new.popleft()
            self._sent = [*(each for each in self._sent if not each.done), inquiry]
            ask(inquiry.key)

    def answered(self, key: Key, answer: str) -> None:
        """Take the coordinator's answer."""
        for inquiry in self._sent:
            if inquiry.key == key:
                inquiry.answer = answer
