"""A trial: the values that it tries, its ranks while it runs, what it has reported, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from distrun.runner.decisions.failure import Failure
from distrun.tools.sweep.search.source import Result, Values


class State(Enum):
    """The states of a trial: waiting -> running -> one of the others, or waiting again when its host was lost."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True)
class Member:
    """A rank of a running trial."""

    rank: int
    process: int
    """The number of its process, in frames."""
    host: str
    slot: int
    was_spare: bool = False


@dataclass
class Trial:
    """One trial of a sweep."""

    number: int
    values: Values
    state: State = State.WAITING
    attempts: int = 0
    """How often it was started."""
    members: tuple[Member, ...] = ()
    """Its ranks, of the last attempt."""
    alive: set[int] = field(default_factory=set)
    """The processes of those that run."""
    unheard: set[int] = field(default_factory=set)
    """Former spares that have not said yet that they run the script."""
    needs_new_processes: bool = False
    """Whether spares are not for it: one was dead when it was taken."""
    reports: list[tuple[float, float]] = field(default_factory=list)
    """Steps with the values that rank 0 has reported."""
    printed: float | None = None
    """The last value of the metric that rank 0 has printed."""
    is_pruned: bool = False
    """Whether its ranks have been told to end early."""
    lost: str = ""
    """Why it cannot go on, if a host was lost; empty = it was not."""
    lost_hosts: set[str] = field(default_factory=set)
    """Hosts that were lost with ranks of it. They may be back, with slots for other trials."""
    failure: Failure | None = None
    """The first failure of a rank; `rank` in it is the number of the process."""
    is_consequence: bool = False
    """Whether that failure is of a rank that merely lost a peer."""
    began: float = 0.0
    seconds: float = 0.0
    """The time that the last attempt took."""
    end_at: float | None = None
    """When the ranks that are left are to be ended."""
    failure_text: str = ""
    """The report of its failure, for people."""

    @property
    def value(self) -> float | None:
        """The last value reported, or else printed; None: there is none."""
        return self.reports[-1][1] if self.reports else self.printed

    @property
    def step(self) -> float | None:
        """The step of the last report."""
        return self.reports[-1][0] if self.reports else None

    @property
    def hosts(self) -> list[str]:
        """The hosts of its ranks."""
        return list(dict.fromkeys(member.host for member in self.members))

    @property
    def result(self) -> Result:
        """The result that the source of trials is told."""
        value = None if self.state is State.FAILED else self.value
        return Result(self.number, self.values, value, self.state is State.PRUNED, tuple(self.reports))

    def begin(self, members: tuple[Member, ...], now: float) -> None:
        """Note that it begins, perhaps once more."""
        self.state = State.RUNNING
        self.attempts += 1
        self.members, self.alive = members, {member.process for member in members}
        self.unheard = {member.process for member in members if member.was_spare}
        self.reports.clear()
        self.printed, self.failure, self.end_at = None, None, None
        self.is_pruned = self.is_consequence = False
        self.lost = ""
        self.lost_hosts.clear()
        self.began = now

    def note_failure(self, failure: Failure, is_consequence: bool) -> None:
        """Note a rank's failure: the first counts that is no consequence of another."""
        if self.failure is None or (self.is_consequence and not is_consequence):
            self.failure, self.is_consequence = failure, is_consequence


def finished(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that need not be run again when a sweep is resumed; those that failed may not fail now."""
    return [trial for trial in trials if trial.state in (State.COMPLETE, State.PRUNED)]
