"""The end of a generation, the begin of the next, and the end of an elastic job: what its decisions are made of."""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from distrun.contract.elastic import messages
from distrun.runner.decisions import events
from distrun.runner.decisions.actions import CleanUpAfter
from distrun.runner.decisions.elastic import wording
from distrun.runner.decisions.elastic.actions import BeginGeneration, EndProcesses, Generation, Member, Say
from distrun.runner.decisions.elastic.budget import Budget, Rounds
from distrun.runner.decisions.elastic.failure_history import FailureHistory
from distrun.runner.decisions.elastic.options import ElasticOptions
from distrun.runner.decisions.elastic.processes import Process
from distrun.runner.decisions.elastic.ranks import in_rank_order
from distrun.runner.decisions.elastic.workforce import Workforce
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.policy import KILL_TIMEOUT, Policy, State

if TYPE_CHECKING:
    from distrun.runner.decisions.actions import Action

GATHER_TIME = 0.01  # seconds in which the deaths of several processes, reported one after the other, become one regroup
FUTILE_GENERATIONS = 3  # in a row: all ranks started again, and one failed by itself before any had joined
FUTILE_TIME = 30.0  # seconds; a script that never joins may fail later than that without being hopeless
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # ends that are hardly the script's own doing
_STILL_WORKING = (State.RUNNING, State.SETTLING)


def is_by_itself(failure: Failure) -> bool:
    """Whether a process has failed by its script's own doing."""
    return failure.exit is not None and failure.exit.returncode not in _FROM_OUTSIDE


class Regrouping(Policy):
    """The facts about an elastic job, and how a generation ends and begins."""

    def __init__(
        self, hosts: Mapping[str, int], options: ElasticOptions, grace: float, start_timeout: float, now: float
    ) -> None:
        """Args: see `ElasticPolicy`."""
        super().__init__({}, grace, start_timeout, now)
        self.state = State.CONNECTING
        self.deadline = now
        self._options = options
        self._workforce = Workforce(hosts, options, start_timeout)
        self._processes = self._workforce.processes
        self._places = self._workforce.hosts
        self._budget = Budget(options.max_restarts, options.restart_window)
        self._history = FailureHistory(now)
        self._ends_as_any_job = False
        """Whether nothing is regrouped any more."""

        self._generation = Generation(0, ())
        """The present one; 0 before the first."""
        self._begun = now
        self._met = now
        """When the last rank of the present generation has met the others."""
        self._is_fresh = True
        """Whether nobody in the present generation had survived another."""
        self._has_state = False
        """Whether some rank has, or has had, a state that survives the end of a generation."""
        self._is_closed = False
        """Whether it is known that nobody in the present generation survives it."""
        self._has_joined = False
        """Whether any rank has met the others of the present generation."""
        self._is_training = False
        """Whether a script without elastic code has come so far in it that it says what it has imported."""
        self._futile = 0
        """The number of futile generations in a row."""

        self._rounds = Rounds()
        self._start_at = now
        """Where nobody has survived, when the ranks may be started again."""

        self._cause: Failure | None = None
        """Why the present generation is over."""
        self._reason = ""
        """The cause as a sentence, or why the generation is to be left."""
        self._is_told = False
        """Whether the user knows the reason."""
        self._complaints: dict[int, str] = {}
        """rank -> why it has left the present generation, though no process had failed"""
        self._lost_peer: Failure | None = None
        """The first failure of a rank that lost a peer, until it is known who failed."""
        self._suspect: str | None = None
        """The host whose links failed last, if no other failure came since."""
        self._unheard: set[int] = set()
        """Members of a generation that was left as if a link had failed, which have said nothing since: one of them may
        turn out to have failed then."""
        self._link_failure = ""
        """The line of the story about that link."""
        self._unswept: set[str] = set()
        """Hosts with members of the present generation whose agent was lost."""

        self._regroup_at = self._settle_by = now
        self._remind_at = float("inf")
        """When the user is told of members that come to no step boundary."""
        self._lacking_since: float | None = None
        self._planned_since: float | None = None
        self._changed = True
        """Whether there may be something to start or to release."""
        self._look_again = now
        """When there may be so, though nothing has happened."""

    # --- the end of a generation

    def _broken(self, failure: Failure, sentence: str, dead: Collection[Process], now: float) -> list[Action]:
        """End the present generation because of a failure, if it is made good; else the job.

        Args:
            failure: for the end of the job.
            sentence: what has happened, for the user.
            dead: the members that have failed; none: a link has.
            now: the time.
        """
        if self._explains(dead):
            self._history.forget(self._link_failure)
        self._history.add(sentence, self._generation.number, now)
        self._changed = True
        if self.state is State.REGROUPING:
            self._regroup_at = now + GATHER_TIME
            if not self._explains(dead):
                return self._charged(failure, sentence, dead, now)
            self._cause, self._reason, self._is_told = failure, sentence, False
            self._unheard.clear()
            return []
        by_itself = is_by_itself(failure)
        is_futile = by_itself and self._is_fresh and not self._has_joined and now < self._begun + FUTILE_TIME
        self._futile = self._futile + 1 if is_futile else 0
        if self._options.gives_up_early and self._futile >= FUTILE_GENERATIONS:
            why = f"no rank has joined the job in any of {FUTILE_GENERATIONS} generations"
            return self._fail_for_good(failure, why, now)
        self.state, self._regroup_at, self._suspect = State.REGROUPING, now + GATHER_TIME, None
        self._cause, self._reason, self._is_told = failure, sentence, False
        if actions := self._charged(failure, "", dead, now):
            return actions
        processes = self._processes
        if by_itself and failure.rank is not None and processes.known[failure.rank].is_ending:
            processes.ending.clear()  # a script that ends itself with a status does so on all ranks
        return self._end_processes(processes.unenrolled - processes.ending, self._grace, now)

    def _explains(self, dead: Collection[Process]) -> bool:
        """Whether a failure is the one for which the last generation was left, which then seemed to be a link's."""
        return not self._unheard.isdisjoint(process.number for process in dead)

    def _charged(self, failure: Failure, sentence: str, dead: Collection[Process], now: float) -> list[Action]:
        """Tell the user of a failure, or end the job if it is one too many."""
        if self._explains(dead):
            self._unheard.clear()
        elif not self._budget.charge(now, min((process.born for process in dead), default=None)):
            return self._fail_for_good(failure, self._budget.exhausted, now)
        return [Say(sentence)] if sentence else []

    def _end_processes(self, numbers: Iterable[int], grace: float, now: float) -> list[Action]:
        ended = self._processes.end(numbers, now + self._grace + KILL_TIMEOUT)
        return [EndProcesses(ended, grace)] if ended else []

    # --- the begin of a generation

    def _begin_anew(self, now: float) -> list[Action]:
        """Begin a generation in which nobody has survived another: start as many processes as there is room for."""
        newcomers, options = self._processes.newcomers, self._options
        room, needed = options.max_np - len(newcomers), options.min_np - len(newcomers)
        started, _ = self._workforce.start(self._workforce.free_places(room, needed, now), now)
        start = frozenset(process.number for process in started)
        return self._begin([], self._processes.newcomers, start, now)

    def _begin(
        self, survivors: list[Process], newcomers: list[Process], start: frozenset[int], now: float
    ) -> list[Action]:
        """Begin the next generation of these processes; members that are not among them are ended."""
        processes = self._processes
        generation = self._next_generation(survivors, newcomers)
        dropped = processes.members.keys() - {process.number for process in survivors}
        ended = self._end_processes(dropped, self._grace, now)
        said = self._told(generation, bool(survivors), now)
        processes.begin(generation.number, [processes.alive[member.process] for member in generation.members])
        if survivors:
            self._rounds.forget()
        self._is_closed = False
        self._generation, self._begun, self._is_fresh, self._has_joined = generation, now, not survivors, False
        self._cause, self._lost_peer, self._reason, self._is_told = None, None, "", False
        self._is_training = False
        self._lacking_since = self._planned_since = None
        self._complaints.clear()
        self._unswept.clear()
        self._changed = True
        self.state = State.RUNNING
        return [BeginGeneration(generation, start), *ended, *said]

    def _next_generation(self, survivors: Iterable[Process], newcomers: Iterable[Process]) -> Generation:
        ranks = {process.number: process.rank for process in survivors if process.rank is not None}
        order = in_rank_order(ranks, [process.number for process in self._workforce.in_order(newcomers)])
        alive = self._processes.alive
        members = (
            Member(number, rank, alive[number].host, slot)
            for rank, number in enumerate(order)
            if (slot := alive[number].slot) is not None
        )
        return Generation(self._generation.number + 1, tuple(members), self._reason)

    def _told(self, generation: Generation, has_survivors: bool, now: float) -> list[Action]:
        """Return what the user is told of a generation that begins."""
        if generation.number == 1:
            return []
        ranks = wording.count(len(generation.members), "rank")
        starts = "starts" if len(generation.members) == 1 else "start"
        text = f"generation {generation.number} goes on with {ranks}" if has_survivors else f"{ranks} {starts} anew"
        if self._has_state and not has_survivors:
            self._has_state = False
            text += f": the training state is lost with {wording.holders(self._generation.members)}"
        if self._cause is not None:
            text += f"; {self._budget.describe(now)}"
        return [Say(text if self._is_told else f"{generation.reason}: {text}")]

    # --- the end of the job

    def _fail_for_good(self, failure: Failure, why: str, now: float) -> list[Action]:
        return self._failed_as_a_whole(replace(failure, what=f"{failure.what}; {why}"), now)

    def _at_the_end_already(self, process: Process, now: float) -> list[Action]:
        """Fail because of a rank that was lost when another one had done its work: to start again would repeat that."""
        assert self._cause is not None
        why = f"nothing is started anew, since {wording.described(process)} has come to the end of its work"
        return self._fail_for_good(self._cause, why, now)

    def _close(self, now: float, lost_peer: Failure | None = None) -> list[Action]:
        """From now on, end as any job does: some ranks have ended well.

        Args:
            now: the time.
            lost_peer: the failure of a rank that lost a peer, which is the job's unless there is another; None: none.
        """
        others = [*self._processes.arriving, *self._processes.arrived]
        others += [number for spares in self._processes.spares.values() for number in spares]
        actions = self._end_processes(others, 0.0, now)
        self._hand_over()
        self._alive.intersection_update(self._processes.members)
        self.state, self.deadline = State.RUNNING, None
        if lost_peer is not None:
            actions += self._await_root_cause(lost_peer, now)
        return actions if self._alive else [*actions, *self._all_exited(now)]

    def _hand_over(self) -> None:
        """Tell the state machine of any job what there is."""
        if not self._ends_as_any_job:
            self._ends_as_any_job = True
            self._alive = set(self._processes.alive)
            self._hosts = {number: process.host for number, process in self._processes.alive.items()}
            self._agents = set(self._places.ready)

    def _end(self, signum: int, now: float) -> list[Action]:
        self._hand_over()
        return super()._end(signum, now)

    def _give_up(self, failure: Failure | None, now: float) -> list[Action]:
        self._hand_over()
        return super()._give_up(failure, now)

    def _handle_at_the_end(self, event: events.Event, now: float) -> list[Action]:
        match event:
            case events.RankExited(number) | events.RankNotStarted(number) if number not in self._alive:
                return []  # a spare or newcomer, ended when it was not needed any more
            case events.ProcessSaid(number, messages.Waiting(generation, reason)) if (
                number in self._alive and generation == self._generation.number and self.state in _STILL_WORKING
            ):
                why = f"cannot go on, since another rank has ended already: {reason}"
                return self._fail(Failure(number, 1, why), now)
            case events.AgentLost(host) if self.state in _STILL_WORKING and not self._has_ranks(host):
                return [CleanUpAfter(host), *self._agents_gone({host})]
            case _:
                return super().handle(event, now)

    def _has_ranks(self, host: str) -> bool:
        return any(self._hosts[number] == host for number in self._alive)
