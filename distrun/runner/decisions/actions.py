"""The actions that the policy of a job asks for, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distrun.runner.decisions.elastic.actions import ElasticAction


@dataclass(frozen=True)
class StartRanks:
    """Action: all hosts are ready; hand the agents their parts of the plan."""


@dataclass(frozen=True)
class RestartServer:
    """Action: start a parameter server again."""

    number: int
    """That of the process."""
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


@dataclass(frozen=True)
class TellDeparture:
    """Action: tell ranks that wait in init that this one, which has ended well, cannot join them any more."""

    rank: int


@dataclass(frozen=True)
class FinishAgents:
    """Action: have the agents end what the ranks left behind, and leave."""

    grace: float
    """Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class KillAgents:
    """Action: the agents do not answer; end them and, as far as they can be reached, their descendants."""


@dataclass(frozen=True)
class CleanUpAfter:
    """Action: an agent has vanished; end its descendants if they can be reached."""

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
