"""The generations of an elastic job: what has happened in the present one, and the ranks of the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distrun.runner.decisions.elastic.actions import Generation, Say
from distrun.runner.decisions.elastic.processes import Process
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import State

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action


@dataclass(frozen=True)
class Begin:
    """Decision: begin the next generation with these processes, and end the members that are not among them."""

    survivors: list[Process]
    newcomers: list[Process]
    start: frozenset[int] = frozenset()
    """The newcomers to start, or to activate if they are spares."""


@dataclass(frozen=True)
class Finish:
    """Decision: end the job when all its ranks have exited, since some have ended well."""

    lost_peer: Failure | None
    """The failure of a rank that lost a peer. It is the job's failure unless its cause shows. None: none."""


if TYPE_CHECKING:
    Step = Action | Begin | Finish | Failure
    """A decision: an action, a generation that begins, or the end of the job. A failure ends it at once."""


class CurrentGeneration:
    """The state of the present generation. All of it is reset when the next one begins."""

    def __init__(self, now: float) -> None:
        """Args: the time. Generation 0, which has no members, lasts until the first one begins."""
        self.begin(Generation(0, ()), now, False)
        self.state = State.CONNECTING

    def begin(self, plan: Generation, now: float, has_survivors: bool) -> None:
        """Note that a generation begins, and whether some of its members were in another one before."""
        self.state = State.RUNNING
        self.plan = plan
        self.begun = now
        self.has_survivors = has_survivors
        self.has_joined = False
        """Whether any member has met the others."""
        self.is_training = False
        """Whether a script without elastic code has begun to train, so that it will not enrol."""

        self.complaints: dict[int, str] = {}
        """rank -> why it has left, though no process had failed"""
        self.lost_peer: Failure | None = None
        """The first failure of a rank that lost a peer, until it is known who failed."""
        self.unswept: set[str] = set()
        """Hosts with members whose agent was lost. While it is uncertain whether these are dead, no other begins."""
        self.cause: Failure | None = None
        """The failure that has ended the generation."""
        self.reason = ""
        """The cause as a sentence, or why the generation is to be left."""
        self.is_reported = False
        """Whether the user knows the reason."""

        self.settle_by = now
        """In SETTLING: the time after which a link is taken to have failed."""
        self.remind_at = float("inf")
        """In PREPARING: the time to report members that have not reached a step boundary."""
        self.regroup_at = now
        """In REGROUPING: the time when the next generation may begin."""
        self.planned_since: float | None = None
        """The time since which members could join or leave."""
        self.lacking_since: float | None = None
        """The time since which there are too few ranks for the next one."""

    def leave(self, state: State, reason: str, cause: Failure | None = None) -> None:
        """Enter a state that leaves the generation.

        Args:
            state: PREPARING or REGROUPING.
            reason: why, a sentence for the user without a full stop.
            cause: the failure. None: the change is planned.
        """
        self.state, self.reason, self.cause, self.is_reported = state, reason, cause, False

    def report(self, text: str) -> Say:
        """Return the action that tells the user `text`, after the reason if they do not know it yet."""
        prefix = "" if self.is_reported or not self.reason else f"{self.reason}: "
        self.is_reported = True
        return Say(prefix + text)

    def nothing_again(self, process: Process) -> Failure:
        """Return the failure of a job that lost a rank when `process` had done its work.

        All ranks would have to start again, and come to the same end.
        """
        assert self.cause is not None
        why = f"nothing is restarted, since {process.description} has come to the end of its work"
        return self.cause.explained(why)


def in_rank_order(survivors: Mapping[int, int], newcomers: Sequence[int]) -> list[int]:
    """Return the processes of the next generation in the order of their ranks.

    The survivor with the lowest rank becomes rank 0, which the others find first and which most likely has the state
    that newcomers lack. The other survivors keep their ranks if the new size allows it, so that what depends on a rank,
    such as open files, stays where it is. Those whose ranks are too high fill gaps, in order. Newcomers fill the rest.
    """
    size = len(survivors) + len(newcomers)
    order: list[int | None] = [None] * size
    moved: list[int] = []
    for process in sorted(survivors, key=survivors.__getitem__):
        rank = survivors[process] if order and order[0] is not None else 0
        if rank < size:
            order[rank] = process
        else:
            moved.append(process)
    rest = iter((*moved, *newcomers))
    return [next(rest) if process is None else process for process in order]
