"""The roster: which hosts have joined under which names, which are refused and why, and who is missing. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import count

from distrun.runner.hosts.joining.messages import Member

LAST_CALL = 30.0
"""Seconds to wait for further hosts once there are enough, by default."""


class Roster:
    """The hosts of a job by index, with the members that are there now. The host that listens always is."""

    def __init__(self, own: Member, is_elastic: bool = False, last_call: float = LAST_CALL, now: float = 0.0) -> None:
        """
        Args:
            own: the host that listens.
            is_elastic: whether hosts may be replaced after the job has begun.
            last_call: seconds to wait for further hosts once there are `own.least`.
            now: the time.
        """
        self.members: dict[int, Member] = {}
        """The members that are there now, by index. Hosts that asked for no index are numbered from `own.hosts` on, in
        the order of their arrival."""
        self.has_begun = False
        """Whether the job has its hosts, so that others come too late."""
        self._own = own
        self._is_elastic = is_elastic
        self._last_call = last_call
        self._least = own.least or own.hosts
        self._enough_since: float | None = None
        self._free_indices = count(own.hosts)
        self._names: dict[int, str] = {}  # of all that have ever joined, no two alike
        self.join(own, now)

    def refusal(self, member: Member) -> str:
        """Return why a member may never join, a sentence. Empty = it may, once its index is free."""
        own, first = self._own, 1 if self._own.info is None else 0  # where hosts have no launchers, 0 is the launcher
        if reason := member.incompatibility():
            return f"{member.name} cannot be used: {reason}"
        if member.size != own.size:
            host = own.name if own.index is None else f"host {own.index}"
            return (
                f"{_described(member)} was told that there are {member.size} hosts, and {host} that there are "
                f"{own.size}: give all the same number (--nnodes)"
            )
        may_be_any = member.index is None and own.info is not None
        if not may_be_any and member.index not in range(first, own.hosts):
            there = "is the launcher's own" if member.index == own.index else "does not exist"
            allowed = f"allowed are {first} to {own.hosts - 1}"
            return f"{member.name} calls as host {member.index}, which {there}: {allowed}"
        if member.ranks < 1:
            return f"{member.name} takes {member.ranks} ranks: allowed are 1 and more"
        if self.has_begun and not self._is_elastic:
            return f"the job has begun without {member.name}, and it is not elastic"
        if member.index is None and self.is_full:
            return f"{self.describe()}: {member.name} is one too many"
        return ""

    def occupant(self, member: Member) -> str:
        """Return who has a member's index already, a sentence. Empty = nobody."""
        other = None if member.index is None else self.members.get(member.index)
        if other is None:
            return ""
        return f"host {member.index} has joined already ({other.name}), and {member.name} calls as the same"

    def may_become_free(self) -> bool:
        """Whether an index that another process has may become free, because a host may still be replaced."""
        return self._is_elastic or not self.has_begun

    def join(self, member: Member, now: float) -> Member:
        """Add a member. Return it with its index and the name that it is called by.

        Names are unique, and a replacement is called as the host before it. Hosts with their own launcher keep their
        names, which `nodes.messages.with_unique_names` changes when all have come.
        """
        index = next(self._free_indices) if member.index is None else member.index
        name = self._names.get(index) if self.has_begun else None
        if name is None:
            others = {name for other, name in self._names.items() if other != index}
            is_unique = member.name not in others or member.info is not None
            name = member.name if is_unique else f"{member.name} (host {index})"
        self._names[index] = name
        self.members[index] = replace(member, index=index, name=name)
        if self._enough_since is None and len(self.members) >= self._least:
            self._enough_since = now
        return self.members[index]

    def leave(self, index: int) -> None:
        """Remove a member that has gone."""
        self.members.pop(index, None)
        if len(self.members) < self._least:
            self._enough_since = None

    @property
    def is_full(self) -> bool:
        """Whether all hosts are there."""
        return len(self.members) >= self._own.hosts

    @property
    def begins_at(self) -> float:
        """The time at which the job begins with the hosts that are there, infinite while there are too few."""
        if self._enough_since is None:
            return float("inf")
        return self._enough_since + (0.0 if self.is_full else self._last_call)

    def index_of(self, name: str) -> int:
        """Return the index of a host that has joined, though it may have left since."""
        (index,) = (index for index, known in self._names.items() if known == name)
        return index

    def listed(self) -> list[Member]:
        """Return the members that are there now, in the order of their indices."""
        return [self.members[index] for index in sorted(self.members)]

    @property
    def ranks(self) -> int:
        """The number of ranks of the members that are there now."""
        return sum(member.ranks for member in self.members.values())

    def describe(self) -> str:
        """Return who has joined and who is missing: `2 of 4 hosts have joined (0 train-0, 1 train-1), not 2 and 3`."""
        number, size = len(self.members), self._own.size
        verb = "has" if number == 1 else "have"
        if self._own.info is not None:  # such hosts need no index
            names = ", ".join(member.name for member in self.members.values())
            return f"{number} of {size} hosts {verb} joined ({names})"
        there = ", ".join(f"{member.index} {member.name}" for member in self.listed())
        missing = [index for index in range(self._own.hosts) if index not in self.members]
        return f"{number} of {size} hosts {verb} joined ({there}), not {_listed(missing)}"


def _described(member: Member) -> str:
    return member.name if member.index is None else f"host {member.index} ({member.name})"


def _listed(numbers: Collection[int]) -> str:
    """Return numbers in words, at most ten of them: `2 and 3`, `1, 2, 3 and 40 more`."""
    words = [str(number) for number in sorted(numbers)]
    if len(words) > 10:
        words = [*words[:9], f"{len(words) - 9} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "none"
