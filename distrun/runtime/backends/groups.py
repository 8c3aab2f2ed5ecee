"""Groups: the backends of the process sets. All ranks add and remove process sets together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from distrun.errors import BootstrapError, JobAbortedError, UsageError
from distrun.runtime.backends.base import Backend
from distrun.runtime.backends.single_process import SingleProcessBackend
from distrun.runtime.operations.request import Request
from distrun.runtime.transport.shared_memory.segment import AREAS

WORLD = 0
"""The number of the process set of all ranks."""


class GroupFactory(ABC):
    """Makes the backends of process sets of several ranks. All ranks of the job call it, in the same order."""

    @abstractmethod
    def make(self, ranks: tuple[int, ...], what: str) -> Backend | None:
        """Return the backend of `ranks`, or None on a rank that is not one of them. Collective over the whole job.

        Args:
            ranks: in rising order. A rank's position among them is its rank in the backend.
            what: names the operation in error messages.

        Raises:
            BootstrapError: the ranks cannot be connected.
            CollectiveError: a rank is gone.
        """

    @abstractmethod
    def release(self, ranks: tuple[int, ...]) -> None:
        """Free what the backend of `ranks` used. It is closed, on all of its ranks."""


class Groups:
    """The process sets of a job, as one of its ranks knows them. One thread at a time calls it."""

    def __init__(self, world: Backend, factory: GroupFactory | None = None) -> None:
        """`world` is the backend of all ranks. `factory` makes the backends of other sets, and is None in a world of
        one."""
        self._world = world
        self._factory = factory
        self.backends: dict[int, Backend] = {WORLD: world}
        """The backends of this rank's sets, by the number of the set."""
        self.ranks: dict[int, tuple[int, ...]] = {WORLD: tuple(range(world.size))}
        """The ranks of all sets, in rising order."""
        self.before_removal: list[Callable[[int], None]] = []
        """Called with the number of a set before the set is removed, while its backend still exists."""

    def add(self, process_set: int, ranks: Sequence[int], what: str) -> None:
        """Add a process set. Collective over all ranks of the job, whether they belong to the set or not.

        Args:
            process_set: the number of the new set.
            ranks: its ranks, in rising order.
            what: names the operation in error messages.

        Raises:
            UsageError: there are too many sets. It is raised on all ranks, and the job continues.
            CollectiveError: its ranks cannot be connected.
        """
        ranks = tuple(ranks)
        if len(self.ranks) > AREAS:
            raise UsageError(
                f"process set {list(ranks)} cannot be added: there are {AREAS} already, and no more are supported; "
                "remove those that are no longer needed"
            )
        try:
            backend = self._make(ranks, what)
        except BootstrapError as error:
            raise JobAbortedError(f"process set {list(ranks)} cannot be added: {error}") from None
        self.ranks[process_set] = ranks
        if backend is not None:
            self.backends[process_set] = backend

    def _make(self, ranks: tuple[int, ...], what: str) -> Backend | None:
        if len(ranks) == 1:
            return SingleProcessBackend() if ranks[0] == self._world.rank else None
        assert self._factory is not None, "a world of one has no sets of several ranks"
        return self._factory.make(ranks, what)

    def remove(self, process_set: int, what: str) -> None:
        """Remove a process set, and free what it holds. Collective over all ranks of the job, as `add` is."""
        for release in self.before_removal if process_set in self.backends else ():
            release(process_set)
        self._world.barrier(what)  # afterwards no rank uses the set
        ranks = self.ranks.pop(process_set)
        backend = self.backends.pop(process_set, None)
        if backend is not None:
            backend.close()
        if self._factory is not None and len(ranks) > 1:
            self._factory.release(ranks)

    def root_of(self, request: Request) -> int:
        """Return the position of a broadcast's root in its process set."""
        return self.ranks[request.process_set].index(request.root) if request.process_set else request.root

    def close(self) -> None:
        """Release what the backends hold."""
        for backend in reversed(self.backends.values()):
            backend.close()
