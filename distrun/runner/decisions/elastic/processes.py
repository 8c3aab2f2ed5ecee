"""The processes of an elastic job: the role and place of each, and what each is expected to do next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import TypeVar

_Key = TypeVar("_Key", str, int)


class Role(Enum):
    """The role of a process. `distrun.contract.elastic.messages` describes them in the order of its life."""

    SPARE = "spare"
    NEWCOMER = "newcomer"
    MEMBER = "member"
    LEAVING = "leaving"
    """It is being ended."""


@dataclass(eq=False)
class Process:
    """One process that was started."""

    number: int
    host: str
    slot: int | None
    """None in a spare, which has no GPU yet."""
    role: Role
    born: float
    """The time when it was started, or activated."""
    pid: int | None = None
    rank: int | None = None
    """Its rank in the latest generation that it was in."""
    generation: int = 0
    """The latest generation that it was assigned to."""
    is_warm: bool = False
    """Whether it is a spare that has imported everything."""
    is_ending: bool = False
    """Whether its script has come to its end."""

    def __str__(self) -> str:
        """`rank 1 on h2`, `a newcomer on h2`."""
        if self.rank is not None:
            return f"rank {self.rank} on {self.host}"
        return f"a {'spare' if self.slot is None else 'newcomer'} on {self.host}"

    @property
    def description(self) -> str:
        """A text such as `rank 1 on h2 (pid 4711)`."""
        return str(self) if self.pid is None else f"{self} (pid {self.pid})"


class Processes:
    """All processes that are alive, by role and by what is expected of them next."""

    def __init__(self, now: float) -> None:
        """Args: the time."""
        self.met_at = now
        """When the last member of a generation met the others."""
        self.have_state = False
        """Whether some member has, or has had, a state that survives the end of a generation."""
        self.known: dict[int, Process] = {}
        """All processes that ever were, for their names."""
        self.alive: dict[int, Process] = {}
        self.members: dict[int, Process] = {}
        """The processes of the present generation that are alive and not being ended."""
        self.arriving: dict[int, Process] = {}
        """Newcomers that have not reached `init` or `elastic.run` yet, in the order of their starts."""
        self.arrived: dict[int, Process] = {}
        """Newcomers that wait there to be assigned a rank."""
        self.waiting: set[int] = set()
        """Members that have left the present generation and wait for the next."""
        self.unjoined: set[int] = set()
        """Members that have not yet met the others of the present generation."""
        self.enrolled: set[int] = set()
        self.unenrolled: set[int] = set()
        """Members that would not survive the end of the generation, since they are not in `elastic.run` yet."""
        self.ending: set[int] = set()
        """Members whose script has come to its end."""
        self.starting: dict[int, float] = {}
        """process -> the deadline for it to be reported as started, in this order."""
        self.leaving: dict[int, float] = {}
        """Members of the present generation that are being ended -> the time when they are given up, in this order."""
        self.failing: dict[int, float] = {}
        """Members that have not exited after an exception in the script -> the time to end them, in this order."""
        self.spares: defaultdict[str, dict[int, Process]] = defaultdict(dict)
        """host -> its spares"""
        self.on_host: defaultdict[str, dict[int, Process]] = defaultdict(dict)
        """host -> all its processes"""
        self._places: dict[tuple[str, int], int] = {}

    @property
    def newcomers(self) -> list[Process]:
        """All newcomers."""
        return [*self.arriving.values(), *self.arrived.values()]

    def is_free(self, host: str, slot: int) -> bool:
        """Whether a slot has no process."""
        return (host, slot) not in self._places

    def taken(self, host: str) -> int:
        """Return how many slots of a host have a process."""
        return len(self.on_host[host]) - len(self.spares[host])

    def start_spare(self, host: str, now: float, start_by: float) -> Process:
        """Add a spare, which is being started."""
        spare = self._add(host, None, Role.SPARE, now, start_by)
        self.spares[host][spare.number] = spare
        return spare

    def start(self, host: str, slot: int, now: float, start_by: float) -> Process:
        """Return a newcomer for a slot: the warmest spare of the host, or one that is being started."""
        spares = self.spares[host].values()
        spare = next((spare for spare in spares if spare.is_warm), next(iter(spares), None))
        if spare is None:
            process = self._add(host, slot, Role.NEWCOMER, now, start_by)
        else:
            process = spare
            del self.spares[host][process.number]
            process.slot, process.role, process.born = slot, Role.NEWCOMER, now
        self._places[host, slot] = process.number
        self.arriving[process.number] = process
        return process

    def arrive(self, number: int) -> None:
        """Note that a newcomer waits to be assigned a rank."""
        if number in self.arriving:
            self.arrived[number] = self.arriving.pop(number)

    def join(self, number: int, now: float) -> None:
        """Note that a member has met the others of its generation."""
        self.unjoined.discard(number)
        self.met_at = now

    def enroll(self, number: int) -> None:
        """Note that a process is in `elastic.run`, so that it survives the end of its generation."""
        self.have_state = True
        if self.alive[number].role in (Role.NEWCOMER, Role.MEMBER):
            self.enrolled.add(number)
            self.unenrolled.discard(number)

    def begin(self, generation: int, members: Iterable[Process]) -> None:
        """Make `members`, in rank order, the members of `generation`. Other previous members are being ended."""
        before = self.members
        self.members = {process.number: process for process in members}
        for number in before.keys() - self.members.keys():
            self._dismiss(before[number])
        self.have_state &= not before.keys().isdisjoint(self.members)
        for rank, process in enumerate(self.members.values()):
            process.rank, process.generation, process.role = rank, generation, Role.MEMBER
            self.arriving.pop(process.number, None)
            self.arrived.pop(process.number, None)
        self.waiting.clear()
        self.leaving.clear()
        self.unjoined = set(self.members)
        self.unenrolled = set(self.members) - self.enrolled

    def end(self, numbers: Iterable[int], give_up: float) -> frozenset[int]:
        """Note that processes are being ended, and return those that were not being ended before.

        Members are no longer waited for after the time `give_up`.
        """
        ended = []
        for number in list(numbers):
            process = self.alive[number]
            if process.role is Role.LEAVING:
                continue
            if process.role is Role.MEMBER and number not in self.waiting:
                self.leaving[number] = give_up
            self._dismiss(process)
            ended.append(number)
        return frozenset(ended)

    def fail(self, number: int, end_by: float) -> None:
        """Note that the script of a member has failed, so that the process leaves all roles and exits by itself."""
        self._dismiss(self.alive[number])
        self.failing[number] = end_by

    def gone(self, number: int) -> Process | None:
        """Note that a process is dead, and return it with the role that it had, None if it was dead already."""
        process = self.alive.pop(number, None)
        if process is None:
            return None
        role = process.role
        self._dismiss(process)
        process.role = role
        self.leaving.pop(number, None)
        self.failing.pop(number, None)
        self.starting.pop(number, None)
        del self.on_host[process.host][number]
        if process.slot is not None:
            del self._places[process.host, process.slot]
        return process

    def _add(self, host: str, slot: int | None, role: Role, now: float, start_by: float) -> Process:
        process = Process(len(self.known), host, slot, role, now)
        self.known[process.number] = self.alive[process.number] = self.on_host[host][process.number] = process
        self.starting[process.number] = start_by
        return process

    def _dismiss(self, process: Process) -> None:
        """Take a process out of all roles."""
        number, process.role = process.number, Role.LEAVING
        for processes in (self.members, self.arriving, self.arrived, self.spares[process.host]):
            processes.pop(number, None)
        for numbers in (self.waiting, self.unjoined, self.enrolled, self.unenrolled, self.ending):
            numbers.discard(number)


def late(deadlines: Mapping[_Key, float], now: float) -> list[_Key]:
    """Return the keys whose deadlines have passed. The deadlines must be in order."""
    return [key for key, _ in takewhile(lambda item: item[1] <= now, deadlines.items())]
