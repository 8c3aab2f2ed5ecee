"""The findings of a report as data: all that its page shows, and nothing of how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distrun.runner.observation.model.stragglers import Straggler
from distrun.runner.observation.report.histogram import Histogram

ACTIVITIES = {
    "input": "waiting for input",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other code",
    "saving": "saving",
    "waiting": "waiting for other ranks",
    "moving": "moving data",
}
"""The things that a rank does in a step, and their names on pages, in the order of the plots."""
COMPUTING = ("forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class RankSummary:
    """One rank over the whole job."""

    rank: int
    host: str
    steps: int
    samples: float
    """Samples in each step; 0: not known."""
    seconds: Mapping[str, float]
    """Seconds per step by `ACTIVITIES`; where steps are not known, per second."""
    held_up: float = 0.0
    """Seconds per step that it costs the others, by being late; see `observation.model.seconds`."""

    @property
    def step(self) -> float:
        """Seconds per step."""
        return sum(self.seconds.values())

    def share(self, *activities: str) -> float:
        """Return the share of a step that some activities take."""
        return sum(self.seconds.get(activity, 0.0) for activity in activities) / self.step if self.step else 0.0


@dataclass(frozen=True)
class Interval:
    """An interval of the job, for what changes over time; all ranks together."""

    begin: float
    """Seconds since the start."""
    seconds: float
    """Its length."""
    steps: float
    """Steps per second of a rank."""
    shares: Mapping[str, float]
    """Shares of the time by `ACTIVITIES`."""


@dataclass(frozen=True)
class Scale:
    """The speed that the job would have on more hosts, as predicted."""

    factor: int
    hosts: int
    ranks: int
    step: float
    """Seconds per step."""
    efficiency: float
    """Against one rank: 1 if no time were lost."""
    error: float = 0.0
    """The efficiency may be so much lower or higher."""


@dataclass(frozen=True)
class Scaling:
    """The speed on more hosts, as the profile of the job has it."""

    alone: float | None = None
    """Seconds of a step on one rank alone; None: there is no profile."""
    step: float | None = None
    """Seconds of a step of this job, as the profile has it: a median."""
    scales: Sequence[Scale] = ()
    """The speed now, and on more hosts."""
    said: str = ""
    """Sentences about what was assumed, or why nothing was predicted."""


@dataclass(frozen=True)
class Host:
    """A host of the job."""

    name: str
    ranks: Sequence[int]
    cpu: float | None = None
    """Percent of all of its cores, on average."""
    memory: float | None = None
    """Percent, at most."""
    received: float | None = None
    """Bytes per second over its busiest interface, on average."""
    sent: float | None = None


@dataclass(frozen=True)
class Summary:
    """A job that is over."""

    command: str
    """The command line as given."""
    began: str
    """The time of day and date."""
    seconds: float
    status: int
    ending: str
    """A predicate: `ended well`, `was interrupted by SIGINT`."""
    ranks: Sequence[RankSummary]
    hosts: Sequence[Host]
    steps: Histogram
    """The lengths of steps."""
    stragglers: Sequence[Straggler] = ()
    """The ranks that cost the others more than a tenth of the training, the dearest first."""
    moments: Sequence[Interval] = ()
    failure_report: str = ""
    """The report of a failure as printed."""
    single_rank_step: float | None = None
    """Seconds of a step on one rank alone, if the user has said so."""
    scaling: Scaling = field(default_factory=Scaling)
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """Sentences about what the report lacks."""
    profile: Mapping[str, Any] | None = None
    """The profile that `distrun predict` reads."""
