"""The messages of the launchers of a job's nodes: what a node brings, which nodes there are, what has happened."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from distrun.runner.decisions import events
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.handshake import HostInfo


@dataclass(frozen=True)
class Node:
    """One launcher's share in the job."""

    name: str
    """The host's name; in an `Assembly` no two nodes have the same."""
    ranks: int
    """The number of ranks that it starts."""
    nodes: str
    """The number of nodes that its user asked for, as typed: `2`, `2:4`."""
    number: int | None
    """The place among the nodes that its user asked for; None = any."""
    info: HostInfo

    def to_json(self) -> dict[str, Any]:
        """Return the node as an object of JSON."""
        return {**asdict(self), "info": json.loads(self.info.to_json())}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Node:
        """Return what `to_json` wrote."""
        return cls(**{**values, "info": HostInfo.from_json(json.dumps(values["info"]).encode())})


@dataclass(frozen=True)
class Assembly:
    """The nodes of a job that is about to begin, in the order of their ranks."""

    job: str
    """The job's name, made up for this start."""
    nodes: tuple[Node, ...]
    here: int
    """The index of the node that is told so."""
    server: int
    """The index of the node that hosts the rendezvous."""

    def to_json(self) -> dict[str, Any]:
        """Return the message that tells it."""
        return {**vars(self), "nodes": [node.to_json() for node in self.nodes]}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Assembly:
        """Return what `to_json` wrote."""
        return cls(**{**message, "nodes": tuple(map(Node.from_json, message["nodes"]))})


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
class News:
    """An event that one launcher tells the others."""

    host: str
    """The node that it happened on."""
    event: events.Event
    last_words: bytes = b""
    """The end of what the rank that has failed wrote to stderr."""

    def to_json(self) -> dict[str, Any]:
        """Return the message that tells it."""
        kind, values = type(self.event).__name__, asdict(self.event)
        return {"host": self.host, "kind": kind, "event": values, "last_words": self.last_words.decode("latin-1")}

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> News:
        """Return what `to_json` wrote."""
        values = dict(message["event"])
        if "exit" in values:
            values["exit"] = RankExit(**values["exit"])
        event = _EVENTS[message["kind"]](**values)
        return cls(message["host"], event, message["last_words"].encode("latin-1"))


def is_told(event: events.Event) -> bool:
    """Whether an event concerns the other nodes. Signals to ranks, unlike those that end the job, do not."""
    if isinstance(event, events.SignalReceived):
        return event.signum not in (signal.SIGUSR1, signal.SIGUSR2)
    return type(event).__name__ in _EVENTS


def named_apart(nodes: list[Node]) -> list[Node]:
    """Return the nodes, those of one machine with different names: `box`, `box (node 1)`."""
    seen: set[str] = set()
    apart = []
    for index, node in enumerate(nodes):
        name = node.name if node.name not in seen else f"{node.name} (node {index})"
        seen.add(name)
        apart.append(replace(node, name=name))
    return apart
