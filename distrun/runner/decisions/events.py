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
    """The CPUs that it is bound to, such as `0-3,8`; empty = it is not."""


@dataclass(frozen=True)
class RankNotStarted:
    """A rank could not be started."""

    rank: int
    status: int
    """The exit status a shell would give: 127 for a command that does not exist."""
    reason: str


@dataclass(frozen=True)
class RankExited:
    """A rank is gone, and the printer has all its output."""

    rank: int
    exit: RankExit
    lost_peer: bool = False
    """Whether the last thing it wrote to stderr says that it ended because it lost a peer."""


@dataclass(frozen=True)
class ProcessSaid:
    """A process of an elastic job has said something on its control channel."""

    process: int
    """The number of the process, which the launcher gave it, and which is not its rank."""
    message: Message


@dataclass(frozen=True)
class HostsFound:
    """The user's script has listed the hosts that may be used now, in its order, with their slots."""

    slots: Mapping[str, int]


@dataclass(frozen=True)
class HostCleaned:
    """A host whose agent was lost was swept: nothing of the job runs there, as far as it can be reached."""

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
    """Whether no host can ever be used again, as the scheduler's job is over."""
    status: int = 2
    """The exit status that stands for it: 2, as it is for the user to correct, unless the host was just lost."""


@dataclass(frozen=True)
class AgentGone:
    """An agent has left in an orderly way: its descendants are gone."""

    host: str
    ended: int
    """The number of processes that ranks had left behind and the agent had to end."""
    unkillable: int = 0
    """The number of those that are left because the kernel does not end them, not even by SIGKILL."""


@dataclass(frozen=True)
class AgentLost:
    """An agent has vanished without leaving in an orderly way."""

    host: str
    reason: str
    status: int = 1
    was_silent: bool = False
    """Whether it counts as gone for its silence, which was so long that it has ended its ranks itself if it lives."""


@dataclass(frozen=True)
class SignalReceived:
    """The launcher has received a signal."""

    signum: int
    host: str = ""
    """The host whose launcher it was sent to; empty = ours."""


@dataclass(frozen=True)
class OutputClosed:
    """Nobody reads what the launcher prints any more."""


@dataclass(frozen=True)
class Printed:
    """The printer has printed everything, or failed, and is gone."""


@dataclass(frozen=True)
class TimeUp:
    """The job has had all the time that the user gives it."""

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
