"""The actions that the policy of a job asks for, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrun.runner.decisions.elastic.actions import ElasticAction


@dataclass(frozen=True)
class StartRanks:
    """Action: hand all agents, which are ready, their parts of the plan."""


@dataclass(frozen=True)
class RestartServer:
    """Action: start a parameter server again."""

    number: int
    """The number of its process."""
    what: str
    """The predicate of the sentence that tells how it ended."""
    restart: int
    """The number of this restart, counted over all servers from 1."""


@dataclass(frozen=True)
class MoveServer:
    """Action: start a parameter server, whose host is lost, on another one."""

    number: int
    host: str
    """The host where it is started."""
    reason: str
    """A sentence that tells how its host was lost."""
    restart: int
    """The number of this restart, counted over all servers from 1."""


@dataclass(frozen=True)
class SignalRanks:
    """Action: send this signal to the process group of every rank that is alive."""

    signum: int
    late: tuple[int, ...] = ()
    """The ranks that are killed because the grace period is over."""


@dataclass(frozen=True)
class TellDeparture:
    """Action: tell ranks that wait in init that this rank, which has ended well, will not join them."""

    rank: int


@dataclass(frozen=True)
class FinishAgents:
    """Action: tell the agents to end what the ranks left behind, and to leave."""

    grace: float
    """Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class KillAgents:
    """Action: end the agents, which do not answer, and their descendants as far as these can be reached."""


@dataclass(frozen=True)
class CleanUpAfter:
    """Action: end the descendants of an agent that has vanished, if they can be reached."""

    host: str


if TYPE_CHECKING:
    Action = (
        StartRanks
        | RestartServer
        | MoveServer
        | SignalRanks
        | TellDeparture
        | FinishAgents
        | KillAgents
        | CleanUpAfter
        | ElasticAction
    )
