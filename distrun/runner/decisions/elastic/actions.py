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
    """The slot of its host that the process keeps until it exits. It is the number of its GPU."""


@dataclass(frozen=True)
class Generation:
    """One world of ranks. Local ranks follow from it: the members on a host are numbered by their slots."""

    number: int
    members: tuple[Member, ...]
    """In rank order."""
    reason: str = ""
    """Why the previous generation is over, a sentence without a full stop. Empty in the first one."""


@dataclass(frozen=True)
class BeginGeneration:
    """Action: begin a generation: start the new members with their final ranks, and assign the others their ranks."""

    generation: Generation
    start: frozenset[int]
    """The processes to start. Spares among them are activated instead."""


@dataclass(frozen=True)
class StartNewcomers:
    """Action: start members of the `expected` generation before it begins, with provisional ranks.

    Spares among them are activated instead.
    """

    expected: Generation
    processes: frozenset[int]


@dataclass(frozen=True)
class StartSpares:
    """Action: start spares, which import `modules`. They do not get signals for the script (SIGUSR1, SIGUSR2)."""

    hosts: Mapping[int, str]
    """process -> host"""
    modules: tuple[str, ...]


@dataclass(frozen=True)
class PrepareMembers:
    """Action: ask these processes to leave the generation at their next step boundary."""

    generation: int
    processes: frozenset[int]
    reason: str


@dataclass(frozen=True)
class EndProcesses:
    """Action: end these processes and all that they have started. Each is then reported as exited."""

    processes: frozenset[int]
    grace: float
    """Seconds between SIGTERM and SIGKILL. 0 = SIGKILL at once."""


@dataclass(frozen=True)
class ConnectHosts:
    """Action: start agents on these hosts. Each is then reported as ready or refused."""

    hosts: frozenset[str]


@dataclass(frozen=True)
class ReleaseHost:
    """Action: tell the agent of this host, which is not needed, to end what is left there, and to leave."""

    host: str


@dataclass(frozen=True)
class Say:
    """Action: tell the user."""

    text: str
    """One sentence, or several lines for the report of a failure."""


ElasticAction = (
    BeginGeneration | StartNewcomers | StartSpares | PrepareMembers | EndProcesses | ConnectHosts | ReleaseHost | Say
)
