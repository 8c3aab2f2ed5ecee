"""The things that can happen to a job, as plain data. Each reaches the decider, `runner.job`, through its one queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distrun.runner.protocol.exits import RankExit

if TYPE_CHECKING:
    from distrun.contract.elastic.messages import Message


@dataclass(frozen=True)
class RankStarted:
    """A rank runs."""

    rank: int
    pid: int
    cpus: str = ""
    """The CPUs that it is bound to, such as `0-3,8`. Empty = it is not bound."""


@dataclass(frozen=True)
class RankNotStarted:
    """A rank could not be started."""

    rank: int
    status: int
    """The exit status a shell would give: 127 for a command that does not exist."""
    reason: str


@dataclass(frozen=True)
class RankExited:
    """A rank has exited, and the printer has all its output."""

    rank: int
    exit: RankExit
    lost_peer: bool = False
    """Whether the last thing that it wrote to stderr is the error of a rank that lost a peer."""


@dataclass(frozen=True)
class ProcessSaid:
    """A process of an elastic job has sent a message on its control channel."""

    process: int
    """The number that the launcher gave the process. It is not the rank."""
    message: Message


@dataclass(frozen=True)
class HostsFound:
    """The user's script has listed the hosts that may be used now, in its order, with their slots."""

    slots: Mapping[str, int]


@dataclass(frozen=True)
class HostCleaned:
    """A host whose agent was lost was swept: what the job had left there was ended if the host could be reached."""

    host: str
    is_certain: bool
    """Whether it could be reached, so that nothing of the job is left there."""


@dataclass(frozen=True)
class HostStep:
    """A step on the way to a remote host has begun."""

    host: str
    step: str
    """`logging in as me`."""


@dataclass(frozen=True)
class HostReady:
    """A remote host's agent waits for its part of the plan."""

    host: str
    note: str = ""
    """A remark for the user: `has Python 3.12, and here is 3.11`."""


@dataclass(frozen=True)
class HostRefused:
    """A remote host cannot be used."""

    host: str
    reason: str
    """The reason and the remedy, in a sentence that does not name the host."""
    is_final: bool = False
    """Whether no host can ever be used again, because the scheduler's allocation is over."""
    status: int = 2
    """The exit status for it: 2, since the user can correct it, unless the host was just lost."""


@dataclass(frozen=True)
class AgentGone:
    """An agent has left in an orderly way, so its descendants are gone."""

    host: str
    ended: int
    """The number of processes that ranks had left behind and the agent had to end."""
    unkillable: int = 0
    """The number of processes that are left because the kernel does not end them, not even by SIGKILL."""


@dataclass(frozen=True)
class AgentLost:
    """An agent has vanished without leaving in an orderly way."""

    host: str
    reason: str
    status: int = 1
    was_silent: bool = False
    """Whether it was given up because it sent nothing for so long that, if it lives, it has ended its ranks itself."""


@dataclass(frozen=True)
class SignalReceived:
    """The launcher has received a signal."""

    signum: int
    host: str = ""
    """The host where another launcher received it. Empty = this launcher did."""


@dataclass(frozen=True)
class OutputClosed:
    """The launcher's output goes nowhere any more."""

    reason: str = ""
    """A sentence on why it cannot be written, such as a full disk. Empty = its reader is gone."""


@dataclass(frozen=True)
class Printed:
    """The printer has ended: it has printed everything, or failed."""


@dataclass(frozen=True)
class TimeUp:
    """The time limit that the user gave the job is over."""

    seconds: float


Event = (
    HostStep
    | HostReady
    | HostRefused
    | RankStarted
    | RankNotStarted
    | RankExited
    | AgentGone
    | AgentLost
    | SignalReceived
    | OutputClosed
    | Printed
    | TimeUp
    | ProcessSaid
    | HostsFound
    | HostCleaned
)
