"""The actions that the policy of an elastic job asks for, besides those of every job, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """A process with its place in a generation."""

    process: int
    rank: int
    host: str
    slot: int
    """The slot of its host that the process has for life: the number of its GPU."""


@dataclass(frozen=True)
class Generation:
    """One world of ranks. Local ranks follow from it: the members of a host are numbered by their slots."""

    number: int
    members: tuple[Member, ...]
    """In rank order."""
    reason: str = ""
    """Why the generation before is over, a sentence without a full stop; empty in the first."""


@dataclass(frozen=True)
class BeginGeneration:
    """Action: start these members, with their places for certain in their environment, and assign the others theirs."""

    generation: Generation
    start: frozenset[int]
    """The processes to start; those that are spares are activated instead."""


@dataclass(frozen=True)
class StartNewcomers:
    """Action: start these members of a generation that is not begun yet; their places are provisional.

    Those that are spares are activated instead.
    """

    expected: Generation
    processes: frozenset[int]


@dataclass(frozen=True)
class StartSpares:
    """Action: start spares, which import these modules. Signals for the script (SIGUSR1, SIGUSR2) are not for them."""

    hosts: Mapping[int, str]
    """process -> host"""
    modules: tuple[str, ...]


@dataclass(frozen=True)
class PrepareMembers:
    """Action: have these processes leave the generation at their next step boundary."""

    generation: int
    processes: frozenset[int]
    reason: str


@dataclass(frozen=True)
class EndProcesses:
    """Action: end these processes and all that they have started. Each is then reported as exited."""

    processes: frozenset[int]
    grace: float
    """Seconds between SIGTERM and SIGKILL; 0 = SIGKILL at once."""


@dataclass(frozen=True)
class ConnectHosts:
    """Action: start agents on these hosts; each then is reported as ready or refused."""

    hosts: frozenset[str]


@dataclass(frozen=True)
class ReleaseHost:
    """Action: the job needs this host no more: have its agent end what is left there, and leave."""

    host: str


@dataclass(frozen=True)
class Say:
    """Action: tell the user."""

    text: str
    """One sentence, or several lines for the story of a failure."""


ElasticAction = (
    BeginGeneration | StartNewcomers | StartSpares | PrepareMembers | EndProcesses | ConnectHosts | ReleaseHost | Say
)
