"""The data of a report's page."""

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
"""The activities of a rank in a step, with their names on the page, in the order of the plots."""
COMPUTING = ("forward", "backward", "optimizer", "other")


@dataclass(frozen=True)
class RankSummary:
    """One rank over the whole job."""

    rank: int
    host: str
    steps: int
    samples: float
    """Samples per step. 0 = unknown."""
    seconds: Mapping[str, float]
    """Seconds per step for each of `ACTIVITIES`, or per second if steps are unknown."""
    held_up: float = 0.0
    """Seconds per step that it costs the others by being late. See `observation.model.seconds`."""

    @property
    def step(self) -> float:
        """Seconds per step."""
        return sum(self.seconds.values())

    def share(self, *activities: str) -> float:
        """Return the share of a step that some activities take."""
        return sum(self.seconds.get(activity, 0.0) for activity in activities) / self.step if self.step else 0.0


@dataclass(frozen=True)
class Interval:
    """An interval of the job, for the plot over time, summed over all ranks."""

    begin: float
    """Seconds since the start."""
    seconds: float
    """Its length."""
    steps: float
    """Steps per second of a rank."""
    shares: Mapping[str, float]
    """Shares of the time for each of `ACTIVITIES`."""


@dataclass(frozen=True)
class Scale:
    """The predicted speed on a number of hosts."""

    factor: int
    hosts: int
    ranks: int
    step: float
    """Seconds per step."""
    efficiency: float
    """The efficiency relative to one rank: 1 if no time were lost."""
    error: float = 0.0
    """The standard error of the efficiency."""


@dataclass(frozen=True)
class Scaling:
    """The speeds on more hosts, from the profile of the job."""

    alone: float | None = None
    """Seconds of a step on one rank alone. None = without a profile."""
    step: float | None = None
    """Seconds of a step of this job, the median in the profile."""
    scales: Sequence[Scale] = ()
    """The speed now and on more hosts."""
    said: str = ""
    """Sentences about assumptions, or why there is no prediction."""


@dataclass(frozen=True)
class Host:
    """A host of the job."""

    name: str
    ranks: Sequence[int]
    cpu: float | None = None
    """Percent of all of its cores, on average."""
    memory: float | None = None
    """Percent, the maximum."""
    received: float | None = None
    """Bytes per second over its busiest interface, on average."""
    sent: float | None = None


@dataclass(frozen=True)
class Summary:
    """All data about a job that is over."""

    title: str
    """The script and the name of the job: `train.py, job d4d187d2`."""
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
    """The durations of steps."""
    stragglers: Sequence[Straggler] = ()
    """The ranks that cost the others more than a tenth of the training, the costliest first."""
    moments: Sequence[Interval] = ()
    failure_report: str = ""
    """The report of the first failure, as printed."""
    single_rank_step: float | None = None
    """Seconds of a step on one rank alone, if given by the user."""
    scaling: Scaling = field(default_factory=Scaling)
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """Sentences about data that the report lacks."""
    profile: Mapping[str, Any] | None = None
    """The profile that `distrun predict` reads."""
