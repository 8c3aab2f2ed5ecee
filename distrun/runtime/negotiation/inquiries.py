"""Inquiries: a rank that has waited too long asks the coordinator which ranks have not submitted an operation, and may
ask to give it up on all ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from distrun.runtime.negotiation.decisions import Key
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.handle import Handle

ANSWER_TIME = 2.0
"""Seconds that an inquiry waits for the coordinator's answer."""


WHO = "{who}"
"""Replaced by the missing ranks in the reason for giving an operation up."""


class Inquiry:
    """A question to the coordinator, which an engine can wait for."""

    def __init__(self, handle: Handle, why: str = "") -> None:
        """`why` is given to give the operation up unless all ranks have submitted it: the rest of the error's sentence
        about it. The ranks that have submitted it get the error, and the others get it when they submit it. `WHO` in it
        is replaced by the missing ranks."""
        self._handle = handle
        self.why = why
        self.answer: str | None = None
        """The ranks that have submitted it and the ranks that have not. Empty if all have, None until it is known."""
        self.deadline = waking_clock.now() + ANSWER_TIME

    @property
    def key(self) -> Key:
        """The operation's key. It is known once the operation has been submitted to the coordinator."""
        return self._handle.key

    @property
    def done(self) -> bool:
        """Whether the wait is over."""
        return self.answer is not None or self._handle.done or waking_clock.now() >= self.deadline

    @property
    def title(self) -> str:
        """The operation's name in messages."""
        return self._handle.title


class Inquiries:
    """The inquiries of one rank."""

    def __init__(self) -> None:
        self.new: deque[Inquiry] = deque()
        """Inquiries that have not been sent. Any thread may append one."""
        self._sent: list[Inquiry] = []

    def send(self, ask: Callable[[Key, str], None]) -> None:
        """Send the new inquiries. `answered` may be called before `ask` returns."""
        while self.new:
            inquiry = self.new.popleft()
            self._sent = [*(each for each in self._sent if not each.done), inquiry]
            ask(inquiry.key, inquiry.why)

    def answered(self, key: Key, answer: str) -> None:
        """Give the coordinator's answer to the inquiries about this operation."""
        for inquiry in self._sent:
            if inquiry.key == key:
                inquiry.answer = answer
