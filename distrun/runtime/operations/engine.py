"""The engine as operations see it: the protocol of what starts them and makes them progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from distrun.runtime.operations.handle import Handle


class Awaited(Protocol):
    """Something that a thread waits for: an operation, or the first of several to complete."""

    @property
    def done(self) -> bool:
        """Whether the wait is over."""

    @property
    def deadline(self) -> float:
        """When the wait ends even if nothing is done, by the waking clock."""

    @property
    def title(self) -> str:
        """The name in messages."""


class Engine(Protocol):
    """The communication of one rank. The implementations are in `distrun.runtime.engine`."""

    def submit(self, handle: Handle) -> Handle:
        """Start an operation, which progresses while the caller does other things.

        Raises:
            UsageError: an operation of this name is under way already.
            JobAbortedError: the job has failed or this rank has shut down.
        """

    def run(self, handle: Handle) -> Handle:
        """Start an operation that the caller will wait for at once. Raises as `submit` does."""

    def wait(self, handle: Awaited) -> None:
        """Return when `handle` is done, successfully or not."""

    @property
    def is_served_at_once(self) -> bool:
        """Whether another thread starts on a submission at once, without being asked."""

    def ensure_progress(self) -> None:
        """Make sure that the operations under way complete although no thread waits for them."""

    def who_is_missing(self, handle: Handle) -> str:
        """Return which ranks have submitted `handle` and which have not, as the coordinator knows.

        Empty if no rank is missing, or the coordinator does not answer. The operation may be done afterwards.
        """

    def give_up(self, handle: Handle, why: str) -> str:
        """Give up an operation on all ranks, with `StallError`, unless all of them have submitted it.

        It is done afterwards, unless all ranks have submitted it and it is still running, or the coordinator does not
        answer, or has offered it to a rank that does not. Then it is given up later, and this returns who is missing.

        Args:
            handle: the operation.
            why: the rest of the error's sentence about the operation. Ranks that submit it later get the same error.
                `{who}` in it is replaced by the ranks that have submitted it and the ranks that have not.
        """

    def error_reported(self) -> None:
        """Note that a call raises, so that the caller learns of the error."""
