"""The messages between the launchers of a job: which hosts it has, and what has happened on one of them."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from distrun.runner.decisions import events
from distrun.runner.hosts.joining.messages import Member
from distrun.runner.protocol.exits import RankExit


@dataclass(frozen=True)
class Assembly:
    """The hosts of a job that is about to begin, in the order of their ranks."""

    job: str
    """The job's name, which is random."""
    nodes: tuple[Member, ...]
    """The hosts, with unique names."""
    here: int
    """The index of the host that receives this."""
    server: int
    """The index of the host whose launcher hosts the rendezvous."""

    def to_json(self) -> bytes:
        """Return the payload of a BEGIN message."""
        return json.dumps({**vars(self), "nodes": [node.to_json() for node in self.nodes]}).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> Assembly:
        """Return what `to_json` wrote."""
        values = json.loads(payload)
        return cls(**{**values, "nodes": tuple(map(Member.from_json, values["nodes"]))})


_EVENTS = {
    kind.__name__: kind
    for kind in (
        events.RankStarted,
        events.RankNotStarted,
        events.RankExited,
        events.AgentGone,
        events.AgentLost,
        events.SignalReceived,
    )
}


@dataclass(frozen=True)
class Notification:
    """An event of one host, for the launchers of the others."""

    host: str
    """The host where it happened."""
    event: events.Event
    stderr_tail: bytes = b""
    """The last lines that the rank wrote to stderr, if the event is that it has failed."""

    def to_json(self) -> bytes:
        """Return the payload of an EVENT message."""
        kind, values = type(self.event).__name__, asdict(self.event)
        text = self.stderr_tail.decode("latin-1")
        return json.dumps({"host": self.host, "kind": kind, "event": values, "stderr_tail": text}).encode("ascii")

    @classmethod
    def from_json(cls, payload: bytes) -> Notification:
        """Return what `to_json` wrote. Raises KeyError, TypeError or ValueError: it is something else."""
        message = json.loads(payload)
        values = dict(message["event"])
        if "exit" in values:
            values["exit"] = RankExit(**values["exit"])
        event = _EVENTS[message["kind"]](**values)
        return cls(message["host"], event, message["stderr_tail"].encode("latin-1"))


def concerns_others(event: events.Event) -> bool:
    """Whether an event concerns the other launchers. Signals to ranks, unlike those that end the job, do not."""
    if isinstance(event, events.SignalReceived):
        return event.signum not in (signal.SIGUSR1, signal.SIGUSR2)
    return type(event).__name__ in _EVENTS


def with_unique_names(nodes: Sequence[Member]) -> list[Member]:
    """Return the hosts in their order. Hosts of one machine get different names: `box`, `box (node 1)`."""
    seen: set[str] = set()
    named = []
    for index, node in enumerate(nodes):
        name = node.name if node.name not in seen else f"{node.name} (node {index})"
        seen.add(name)
        named.append(replace(node, name=name))
    return named
