"""A trial: the values that it tries, its ranks while it runs, its reports, how it ended, and whether it has failed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from distrun.runner.decisions.failure import Failure
from distrun.tools.sweep.space.ranges import Values

_SAME_FAILURES = 3  # trials: if the first ones to end all fail alike, the command is wrong
_NO_VALUE = (
    "reported no value: call distrun.report(value) in the script, or name what it prints by --metric, as in --metric "
    "loss for loss=0.123"
)


class State(Enum):
    """The states of a trial: waiting -> running -> one of the others, or waiting again if its host was lost."""

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
    """The number of its process, which frames have."""
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
    """The number of its starts."""
    members: tuple[Member, ...] = ()
    """The ranks of its last attempt."""
    alive: set[int] = field(default_factory=set)
    """The processes of the ranks that run."""
    unconfirmed: set[int] = field(default_factory=set)
    """Former spares that have not confirmed yet that they run the script. They may have died before."""
    needs_new_processes: bool = False
    """Whether it gets no spares, because one of its spares was dead already."""
    reports: list[tuple[float, float]] = field(default_factory=list)
    """The steps and values that rank 0 has reported."""
    printed: float | None = None
    """The last value of the metric that rank 0 has printed."""
    is_pruned: bool = False
    """Whether its ranks were asked to end early."""
    lost: str = ""
    """Why it cannot continue, if a host was lost. Empty = no host was."""
    lost_hosts: set[str] = field(default_factory=set)
    """Hosts that were lost with its ranks. They may be back, with slots for other trials."""
    failure: Failure | None = None
    """The first failure of a rank. Its `rank` is the number of the process."""
    is_consequence: bool = False
    """Whether the failed rank had merely lost a peer."""
    began: float = 0.0
    seconds: float = 0.0
    """The time that the last attempt took."""
    end_at: float | None = None
    """The time to end the ranks that are left. None = not planned."""
    failure_text: str = ""
    """The report of its failure, for the user."""

    @property
    def is_begun(self) -> bool:
        """Whether it was started, and neither ended nor failed."""
        return self.state in (State.WAITING, State.RUNNING) and self.attempts > 0

    @property
    def value(self) -> float | None:
        """The last value that was reported or, without reports, printed. None: there is none."""
        return self.reports[-1][1] if self.reports else self.printed

    @property
    def outcome(self) -> float | None:
        """The value, if the trial is complete and did not diverge."""
        value = self.value if self.state is State.COMPLETE else None
        return value if value is not None and math.isfinite(value) else None

    @property
    def step(self) -> float | None:
        """The step of the last report. None: there is none."""
        return self.reports[-1][0] if self.reports else None

    @property
    def hosts(self) -> list[str]:
        """The hosts of its ranks."""
        return list(dict.fromkeys(member.host for member in self.members))

    def begin(self, members: tuple[Member, ...], now: float) -> None:
        """Note that it begins, perhaps again."""
        self.state = State.RUNNING
        self.attempts += 1
        self.members, self.alive = members, {member.process for member in members}
        self.unconfirmed = {member.process for member in members if member.was_spare}
        self.reports.clear()
        self.printed, self.failure, self.end_at = None, None, None
        self.is_pruned = self.is_consequence = False
        self.lost = ""
        self.lost_hosts.clear()
        self.began = now

    def note_failure(self, failure: Failure, is_consequence: bool) -> None:
        """Note the failure of a rank. The first one that is not a consequence of another counts."""
        if self.failure is None or (self.is_consequence and not is_consequence):
            self.failure, self.is_consequence = failure, is_consequence


def judge(trial: Trial, needs_value: bool) -> None:
    """Set the final state of a trial without ranks and, if it has failed, its failure.

    With `needs_value`, a trial without a value has failed.
    """
    if trial.is_pruned:
        trial.state, trial.failure = State.PRUNED, None
        return
    if trial.failure is None and needs_value and trial.value is None:
        trial.failure = Failure(None, 1, _NO_VALUE)
    trial.state = State.COMPLETE if trial.failure is None else State.FAILED


def too_many(trials: Iterable[Trial], ended: int, most: int | None) -> str | None:
    """Return why a sweep ends early because of failures. None: it does not.

    `ended` trials have ended in this run, and the user allows `most` failed ones (None: any, unless the first few all
    fail alike).
    """
    failed = [trial for trial in trials if trial.state is State.FAILED]
    if most is not None:
        return f"{len(failed)} trials have failed" if len(failed) > most else None
    kinds = {trial.failure.what for trial in failed if trial.failure is not None}
    if ended == len(failed) >= _SAME_FAILURES and len(kinds) == 1:
        return (
            f"the first {len(failed)} trials have all failed alike, so the others would too; --max-failures N goes on "
            "in spite of N failures"
        )
    return None
