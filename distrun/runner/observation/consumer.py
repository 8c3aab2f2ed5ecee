"""The interface of consumers of a job's events, such as the timeline, the live view and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distrun.tracing.reader import Event


@dataclass(frozen=True)
class Source:
    """A process that events come from."""

    process: int
    """Its number in frames."""
    rank: int
    """Its current rank."""
    host: str


@dataclass(frozen=True)
class JobEnd:
    """The outcome of a job, for consumers."""

    status: int
    """Its exit status."""
    failure_report: str = ""
    """The report of the first failure, as printed. Empty = no failure."""
    interrupted_by: int | None = None
    """The signal that ended it. None = no signal."""


class Consumer:
    """Takes the events of a job, called by one thread. Times are in nanoseconds of the launcher's monotonic clock.

    What a subclass does not override is ignored.
    """

    title = ""
    """The name of its product, for messages: `the timeline`."""

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        """Take new events of a rank, in the order of recording. `names` has all names of its ring."""

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        """Take the usage of a host's machine. See `agent.usage`. `ranks` has numbers of processes.

        All events that its ranks recorded before `time` have been passed to `events`. `clock` has the `offset` of the
        host's clock from the launcher's, and the `error` that this can have relative to the other hosts, in
        nanoseconds.
        """

    def output(self, rank: int, data: bytes) -> None:
        """Take bytes that a rank has written to stdout or stderr."""

    def tick(self, now: int) -> None:
        """Take the current time. Called several times per second."""

    def close(self, ending: JobEnd) -> None:
        """Complete the product: the job is over."""
