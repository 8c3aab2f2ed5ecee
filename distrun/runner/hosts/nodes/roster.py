"""The roster: which nodes have come to the rendezvous, which are refused, and when the job can begin. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from distrun import __version__
from distrun.runner.hosts.nodes.messages import Node, named_apart
from distrun.runner.protocol.handshake import HostError, check_compatibility


@dataclass(frozen=True)
class Size:
    """The number of nodes that a job may have."""

    least: int
    most: int
    last_call: float = 30.0
    """Seconds in which further nodes may come once there are enough."""

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


class Roster:
    """The nodes that have come, by the numbers of their connections."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._nodes: dict[int, Node] = {}
        self._enough_since: float | None = None

    def arrive(self, number: int, node: Node, now: float) -> str:
        """Take in a node.

        Args:
            number: the number of its connection.
            node: the node.
            now: the time.

        Returns:
            The reason why it is refused, a sentence; empty when it is not.
        """
        if reason := self._refusal(node):
            return reason
        self._nodes[number] = node
        if self._enough_since is None and len(self._nodes) >= self._size.least:
            self._enough_since = now
        return ""

    def leave(self, number: int) -> None:
        """Strike off a node whose launcher has ended."""
        self._nodes.pop(number, None)
        if len(self._nodes) < self._size.least:
            self._enough_since = None

    def is_complete(self, now: float) -> bool:
        """Whether the job can begin."""
        begins = self.begins_at
        return len(self._nodes) == self._size.most or (begins is not None and now >= begins)

    @property
    def begins_at(self) -> float | None:
        """The time at which the job begins with the nodes that there are; None = more must come."""
        return None if self._enough_since is None else self._enough_since + self._size.last_call

    def order(self) -> list[int]:
        """Return the numbers of the connections in the order of ranks: by the place asked for, then as they came."""
        return sorted(self._nodes, key=lambda number: self._place(self._nodes[number]))

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in the order of their ranks, with names of their own."""
        return tuple(named_apart([self._nodes[number] for number in self.order()]))

    def describe(self) -> str:
        """Return who has come: `1 of 2 nodes have come (alpha)`."""
        verb = "has" if len(self._nodes) == 1 else "have"
        names = ", ".join(node.name for node in self._nodes.values())
        return f"{len(self._nodes)} of {self._size} nodes {verb} come ({names})"

    def _place(self, node: Node) -> float:
        return float("inf") if node.number is None else node.number

    def _refusal(self, node: Node) -> str:
        try:
            check_compatibility(node.info, "python", __version__)
        except HostError as error:
            return f"{node.name} cannot be used: {error}"
        if len(self._nodes) == self._size.most:
            return f"{self.describe()}: {node.name} is one too many"
        if node.nodes != str(self._size):
            return (
                f"--nnodes is {node.nodes} on {node.name} and {self._size} on the others: give it the same everywhere"
            )
        for other in self._nodes.values():
            if node.number is not None and other.number == node.number:
                return (
                    f"--node-rank {node.number} was given on {other.name} and on {node.name}: give each node its own, "
                    f"0 to {self._size.most - 1}, or none"
                )
        return ""
