"""The interface of consumers, which make something of the events of a job: a timeline, the live view, a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from distrun.tracing.reader import Event


@dataclass(frozen=True)
class Source:
    """A process that events come from."""

    process: int
    """Its number in frames."""
    rank: int
    """The rank that it has at present."""
    host: str


class Consumer(Protocol):
    """Is told what happens, by one thread. Times are in nanoseconds of the launcher's monotonic clock."""

    title: str
    """Its product, for messages: `the timeline`."""

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        """Take new events of a rank, in the order in which it recorded them; `names` has all names of its ring."""

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        """Take what the ranks of a host use of the machine; see `agent.usage`. `ranks` has numbers of processes.

        All events that its ranks recorded before `time` have been told.
        `clock` has the `offset` of the host's clock from the launcher's, and by how much that can be wrong against the
        other hosts, `error`; nanoseconds.
        """

    def output(self, rank: int, data: bytes) -> None:
        """Take what a rank has written to stdout or stderr."""

    def tick(self, now: int) -> None:
        """Note the time; called several times in a second."""

    def close(self, status: int) -> None:
        """Complete what there is to complete: the job is over, with that exit status."""


@dataclass(frozen=True)
class JobEnd:
    """The way in which a job has ended."""

    status: int
    """Its exit status."""
    failure_report: str = ""
    """The report of the first failure as it is printed; empty: nothing failed."""
    interrupted_by: int | None = None
    """The signal that ended it."""


@runtime_checkable
class HearsEnding(Protocol):
    """A consumer that wants to know how the job has ended, not only with which status."""

    def ended(self, ending: JobEnd) -> None:
        """Note it; `close` follows."""
