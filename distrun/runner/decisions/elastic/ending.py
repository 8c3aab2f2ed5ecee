"""The end of an elastic job, which is like the end of any job: no generation begins again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from distrun.contract.elastic import messages
from distrun.runner.decisions import events
from distrun.runner.decisions.actions import CleanUpAfter
from distrun.runner.decisions.elastic.processes import Process
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import Policy, State

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action


class Ending(Policy):
    """The policy of any job, for the processes and agents that an elastic job has when it ends."""

    def __init__(
        self, processes: Iterable[Process], agents: Iterable[str], generation: int, grace: float, now: float
    ) -> None:
        """Begin with the processes to wait for, whose numbers stand where other jobs have ranks.

        In generation 0 no process has been started yet.
        """
        # All processes have started, or are not waited for: nothing depends on a timeout for that.
        super().__init__({process.number: process.host for process in processes}, grace, 0.0, now)
        self.state, self.deadline = State.RUNNING if generation else State.CONNECTING, None
        self._starting.clear()
        self._agents = set(agents)
        self._generation = generation

    @property
    def has_begun(self) -> bool:
        """Whether the job is ending. A signal that is passed on to the ranks (SIGUSR1) does not end it."""
        return self.state not in (State.CONNECTING, State.RUNNING)

    def await_exits(self, lost_peer: Failure | None, now: float) -> list[Action]:
        """End when all ranks have exited, since some have ended well.

        Args:
            lost_peer: the failure of a rank that lost a peer, which is the job's unless its cause shows. None: none.
            now: the time.
        """
        if lost_peer is not None:
            self._await_root_cause(lost_peer, now)
        return [] if self._alive else self._all_exited(now)

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Note an event, and return what to do."""
        is_working = self.state in (State.RUNNING, State.SETTLING)
        match event:
            case events.RankExited(number) | events.RankNotStarted(number) if number not in self._alive:
                return []  # a spare or newcomer that was ended when it was not needed
            case events.ProcessSaid(number, messages.Waiting(generation, reason)) if (
                is_working and number in self._alive and generation == self._generation
            ):
                why = f"cannot go on, since another rank has ended already: {reason}"
                return self._fail(Failure(number, 1, why), now)
            case events.AgentLost(host) if is_working and not any(self._hosts[rank] == host for rank in self._alive):
                return [CleanUpAfter(host), *self._agents_gone({host})]  # all its ranks have ended well
            case _:
                return super().handle(event, now)
