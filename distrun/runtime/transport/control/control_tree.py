"""The control tree: routes messages between rank 0 and all others if these are too many for a connection each.

The first rank of each host, its *leader*, passes on the messages of the host's ranks. The leaders form a tree with rank
0 at its root. Each leader has at most `fan_out` children. So no rank has more connections than one to its parent and
`fan_out` to its children, and a message from rank 0 passes log(hosts) / log(fan_out) leaders.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from distrun.runtime.transport.host_layout import HostLayout

FAN_OUT = 8
"""The default number of a leader's children. In simulations, 4 to 12 are about equally good for 32 to 1,250 hosts."""
MOST_CONNECTIONS = 64
"""The most ranks on other hosts that rank 0 connects with directly. With more, there is a tree."""


@dataclass(frozen=True)
class ControlTree(HostLayout):
    """The place of a rank in the tree. Hosts are numbered as in a heap: host h has the children f*h+1 to f*h+f.

    f is `fan_out`. Rank 0 is the first of host 0.
    """

    fan_out: int = FAN_OUT

    @cached_property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.ranks))

    @property
    def leader(self) -> int:
        """The leader of this rank's host."""
        return self.local_ranks[0]

    @property
    def parent(self) -> int | None:
        """The leader that this rank passes messages for rank 0 to. None if this is rank 0 or not a leader."""
        if self.rank != self.leader or not self.own:
            return None
        return self.ranks[(self.own - 1) // self.fan_out][0]

    @cached_property
    def children(self) -> tuple[int, ...]:
        """The leaders that pass their messages for rank 0 to this rank."""
        if self.rank != self.leader:
            return ()
        first = self.fan_out * self.own + 1
        return tuple(ranks[0] for ranks in self.ranks[first : first + self.fan_out])

    def subtree(self, leader: int) -> tuple[int, ...]:
        """Return the ranks of the host of `leader` and of all hosts below it, in rising order."""
        return self._subtrees[leader]

    @cached_property
    def _subtrees(self) -> dict[int, tuple[int, ...]]:
        below: list[list[int]] = [list(ranks) for ranks in self.ranks]
        for host in reversed(range(1, len(self.ranks))):
            below[(host - 1) // self.fan_out] += below[host]
        return {ranks[0]: tuple(sorted(below[host])) for host, ranks in enumerate(self.ranks)}

    @cached_property
    def _children_of(self) -> dict[int, int]:
        return {rank: child for child in self.children for rank in self._subtrees[child]}

    def hop(self, rank: int) -> int:
        """Return the leader that this leader passes a message for `rank` of another host to."""
        child = self._children_of.get(rank)
        if child is not None:
            return child
        assert self.parent is not None
        return self.parent


def control_tree(
    hosts: tuple[tuple[int, ...], ...], rank: int, fan_out: int, is_relayed: bool = False
) -> ControlTree | None:
    """Return the tree of a job, or None if all ranks connect with rank 0.

    Args:
        hosts: the ranks of each host.
        rank: the number of this rank.
        fan_out: the most children of a leader if a tree is asked for, else 0.
        is_relayed: whether some ranks had no connection with rank 0 in the rendezvous, so that there must be a tree.
    """
    if not fan_out and not is_relayed and sum(map(len, hosts[1:])) <= MOST_CONNECTIONS:
        return None
    return ControlTree(hosts, rank, fan_out or FAN_OUT)
