"""Inquiries: a rank that has waited too long asks the coordinator which ranks have not submitted an operation, and may
have it given up for all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.handle import Handle

ANSWER_TIME = 2.0
"""Seconds that the coordinator has for its answer."""


WHO = "{who}"
"""Stands for the missing ranks in the reason for which an operation is given up."""


class Inquiry:
    """A question to the coordinator; engines can wait for it."""

    def __init__(self, handle: Handle, why: str = "") -> None:
        """
        Args:
            handle: the operation that it is about.
            why: given if it is to be given up unless all ranks have submitted it: what the error says of it that these
                ranks get, and the others when they submit it. In place of `WHO` it tells who is missing.
        """
        self._handle = handle
        self.why = why
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

    def send(self, ask: Callable[[Key, str], None]) -> None:
        """Ask what is new; `answered` may be called before `ask` returns."""
        while self.new:
            inquiry = self.new.popleft()
            self._sent = [*(each for each in self._sent if not each.done), inquiry]
            ask(inquiry.key, inquiry.why)

    def answered(self, key: Key, answer: str) -> None:
        """Take the coordinator's answer."""
        for inquiry in self._sent:
            if inquiry.key == key:
                inquiry.answer = answer
