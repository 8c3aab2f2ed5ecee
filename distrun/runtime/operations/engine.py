"""The engine as operations see it: what starts them and makes them progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from distrun.runtime.operations.handle import Handle


class Awaited(Protocol):
    """Something an engine waits for: an operation, or the first of several to be done."""

    @property
    def done(self) -> bool:
        """Whether the wait is over."""

    @property
    def deadline(self) -> float:
        """When it is over though nothing is done, by the waking clock."""

    @property
    def title(self) -> str:
        """Its name in messages."""


class Engine(Protocol):
    """The communication of one rank; the implementations are in `distrun.runtime.engine`."""

    def submit(self, handle: Handle) -> Handle:
        """Start an operation; it progresses while the caller does other things.

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
        """Whether another thread sets to work on what is submitted, without being asked."""

    def ensure_progress(self) -> None:
        """See to it that the operations under way will be done although nobody waits for them."""

    def who_is_missing(self, handle: Handle) -> str:
        """Return who has submitted an operation that is not done and who has not, as the coordinator knows; empty if
        nobody is missing, or the coordinator does not answer. It may be done afterwards."""

    def give_up(self, handle: Handle, why: str) -> None:
        """Have an operation given up for all ranks, with `StallError`, unless all of them have submitted it.

        It is done afterwards, unless they have and it takes its time, or the coordinator does not answer. `why` is what
        the error says of it, also to those that submit it later; `{who}` in it stands for who has submitted it and who
        has not.
        """

    def error_reported(self) -> None:
        """Note that a call raises, so that the caller knows what has gone wrong."""
