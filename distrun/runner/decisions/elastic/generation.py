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
    """Decision: the next generation begins with these processes. Members that are not among them are ended."""

    survivors: list[Process]
    newcomers: list[Process]
    start: frozenset[int] = frozenset()
    """The newcomers that are yet to be started, or activated."""


@dataclass(frozen=True)
class Finish:
    """Decision: the job ends when all its ranks have exited, since some have ended well."""

    lost_peer: Failure | None
    """The failure of a rank that lost a peer, which is the job's unless there is another; None: none."""


if TYPE_CHECKING:
    Step = Action | Begin | Finish | Failure
    """A decision: an action, a generation that begins, or the end of the job. A failure ends it at once."""


class CurrentGeneration:
    """The facts about the present generation, all of which are void when the next one begins."""

    def __init__(self, now: float) -> None:
        """Args: the time; the first generation is yet to begin."""
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
        """Whether a script without elastic code has come so far that it says what it has imported."""

        self.complaints: dict[int, str] = {}
        """rank -> why it has left, though no process had failed"""
        self.lost_peer: Failure | None = None
        """The first failure of a rank that lost a peer, until it is known who failed."""
        self.unswept: set[str] = set()
        """Hosts with members whose agent was lost."""
        self.cause: Failure | None = None
        """The failure that has ended it."""
        self.reason = ""
        """The cause as a sentence, or why the generation is to be left."""
        self.is_reported = False
        """Whether the user knows the reason."""

        self.settle_by = now
        """When it is taken that a link has failed, while it is settling."""
        self.remind_at = float("inf")
        """When the user is told of members that come to no step boundary, while it is preparing."""
        self.regroup_at = now
        """When the next one may begin, while it is regrouping."""
        self.planned_since: float | None = None
        """The time since which members could join or leave."""
        self.lacking_since: float | None = None
        """The time since which there are too few ranks for the next one."""

    def leave(self, state: State, reason: str, cause: Failure | None = None) -> None:
        """Note why the generation is left, a sentence for the user, and the failure if there is one."""
        self.state, self.reason, self.cause, self.is_reported = state, reason, cause, False

    def report(self, text: str) -> Say:
        """Return the action that tells the user `text`, after the reason if they do not know it yet."""
        prefix = "" if self.is_reported or not self.reason else f"{self.reason}: "
        self.is_reported = True
        return Say(prefix + text)

    def nothing_again(self, process: Process) -> Failure:
        """Return the failure of a job whose `process` had done its work when another was lost: to start again would
        repeat that.
        """
        assert self.cause is not None
        why = f"nothing is started anew, since {process.description} has come to the end of its work"
        return self.cause.explained(why)


def in_rank_order(survivors: Mapping[int, int], newcomers: Sequence[int]) -> list[int]:
    """Return the processes of the next generation in the order of their ranks.

    The survivor with the lowest rank becomes rank 0, which the others find first and which is likeliest to have what
    they lack. The others keep their ranks where the new size allows it, so that what depends on a rank, such as open
    files, stays where it is; else they fill gaps, in order. Newcomers fill the rest.

    Args:
        survivors: process -> its present rank.
        newcomers: processes without one.
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
