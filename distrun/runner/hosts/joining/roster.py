"""The roster: which hosts have joined under which names, which are refused and why, and who is missing. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from distrun.runner.hosts.joining.messages import Member


class Roster:
    """The hosts of a job by index, with the members that are there now. Host 0, the launcher's, always is."""

    def __init__(self, own: Member, is_elastic: bool = False) -> None:
        """Args: the launcher's own host; whether hosts may be replaced once the job has begun."""
        self.members: dict[int, Member] = {own.index: own}
        """The members that are there now, with names of their own."""
        self.has_begun = False
        """Whether the job has its hosts, so that others come too late."""
        self._own = own
        self._is_elastic = is_elastic
        self._names = {own.index: own.name}  # of all that have ever joined, no two alike

    def refusal(self, member: Member) -> str:
        """Return why a member may never join, a sentence; empty = it may, once its index is free."""
        if reason := member.incompatibility():
            return f"{member.name} cannot be used: {reason}"
        if member.hosts != self._own.hosts:
            return (
                f"host {member.index} ({member.name}) was told that there are {member.hosts} hosts, and host 0 that "
                f"there are {self._own.hosts}: give all the same number"
            )
        if member.index not in range(1, self._own.hosts):
            there = "is the launcher's own" if member.index == 0 else "does not exist"
            return f"{member.name} calls as host {member.index}, which {there}: allowed are 1 to {self._own.hosts - 1}"
        if member.ranks < 1:
            return f"{member.name} takes {member.ranks} ranks: allowed are 1 and more"
        if self.has_begun and not self._is_elastic:
            return f"the job has begun without {member.name}, and it is not elastic"
        return ""

    def occupant(self, member: Member) -> str:
        """Return who has the index of a member already, a sentence; empty = nobody."""
        other = self.members.get(member.index)
        if other is None:
            return ""
        return f"host {member.index} has joined already ({other.name}), and {member.name} calls as the same"

    def may_become_free(self) -> bool:
        """Whether an index that another process has may be had later, as a host may still be replaced."""
        return self._is_elastic or not self.has_begun

    def join(self, member: Member) -> str:
        """Take in a member; return what it is called: a replacement as the one before, and no two alike."""
        name = self._names.get(member.index) if self.has_begun else None
        if name is None:
            others = {name for index, name in self._names.items() if index != member.index}
            name = member.name if member.name not in others else f"{member.name} (host {member.index})"
        self._names[member.index] = name
        self.members[member.index] = replace(member, name=name)
        return name

    def leave(self, index: int) -> None:
        """Strike off a member that has gone."""
        self.members.pop(index, None)

    def index_of(self, name: str) -> int:
        """Return the index of a host that has joined, though it may have left since."""
        (index,) = (index for index, known in self._names.items() if known == name)
        return index

    def listed(self) -> list[Member]:
        """Return the members that are there now, in the order of their indices."""
        return [self.members[index] for index in sorted(self.members)]

    @property
    def missing(self) -> list[int]:
        """The indices of the hosts that are not there."""
        return [index for index in range(self._own.hosts) if index not in self.members]

    @property
    def ranks(self) -> int:
        """The number of ranks that those take who are there."""
        return sum(member.ranks for member in self.members.values())

    def describe_missing(self) -> str:
        """Return who is waited for: `2 of 4 hosts have joined (0 train-0, 1 train-1), not 2 and 3`."""
        there = ", ".join(f"{index} {self.members[index].name}" for index in sorted(self.members))
        count, size = len(self.members), self._own.hosts
        verb = "has" if count == 1 else "have"
        return f"{count} of {size} hosts {verb} joined ({there}), not {_listed(self.missing)}"


def _listed(numbers: Collection[int]) -> str:
    """Return numbers in words, at most ten of them: `2 and 3`, `1, 2, 3 and 40 more`."""
    words = [str(number) for number in sorted(numbers)]
    if len(words) > 10:
        words = [*words[:9], f"{len(words) - 9} more"]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "none"
