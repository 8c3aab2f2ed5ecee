"""What can happen to a job, as plain data: everything the decider hears of comes through one queue as one of these."""

from __future__ import annotations

from dataclasses import dataclass

from distrun.runner.protocol.exits import RankExit


@dataclass(frozen=True)
class RankStarted:
    """A rank runs."""

    rank: int
    pid: int


@dataclass(frozen=True)
class RankNotStarted:
    """A rank could not be started."""

    rank: int
    status: int
    """The exit status a shell would give: 127 for a command that does not exist."""
    reason: str


@dataclass(frozen=True)
class RankExited:
    """A rank is gone, and all its output is in the printer's hands."""

    rank: int
    exit: RankExit
    lost_peer: bool = False
    """Whether it ended because it noticed that a peer was gone, by its own last words."""


@dataclass(frozen=True)
class HostReady:
    """A remote host's agent waits for its part of the plan."""

    host: str
    note: str = ""
    """What the user should know of it: `has Python 3.12, and here is 3.11`."""


@dataclass(frozen=True)
class HostRefused:
    """A remote host cannot be used."""

    host: str
    reason: str
    """Why, and what to do; a sentence that does not name the host."""


@dataclass(frozen=True)
class AgentGone:
    """An agent has said farewell: its descendants are gone."""

    host: str
    ended: int
    """How many processes that ranks had left behind it had to end."""
    unkillable: int = 0
    """How many are left because the kernel does not end them, not even by SIGKILL."""


@dataclass(frozen=True)
class AgentLost:
    """An agent has vanished without a farewell."""

    host: str
    reason: str
    status: int = 1


@dataclass(frozen=True)
class SignalReceived:
    """Somebody sent a signal to the launcher."""

    signum: int


@dataclass(frozen=True)
class OutputClosed:
    """Nobody reads what the launcher prints any more."""


@dataclass(frozen=True)
class Printed:
    """The printer has printed everything and is gone."""


Event = (
    HostReady
    | HostRefused
    | RankStarted
    | RankNotStarted
    | RankExited
    | AgentGone
    | AgentLost
    | SignalReceived
    | OutputClosed
    | Printed
)
