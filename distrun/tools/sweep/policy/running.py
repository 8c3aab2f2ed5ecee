"""The running trials: what the end, or a message, of one rank means for its trial."""

from __future__ import annotations

from collections.abc import Iterator

from distrun.contract.elastic.messages import Report, Verdict
from distrun.runner.decisions.elastic.actions import EndProcesses
from distrun.runner.decisions.failure import Failure
from distrun.tools.sweep.policy.actions import Action, Tell
from distrun.tools.sweep.policy.halving import Halving
from distrun.tools.sweep.policy.trials import Member, Trial

_ROOT_CAUSE = 2.0  # seconds to wait for the failure of the peer when a rank has lost one
_LAST = 1 << 30  # a number that no report reaches, so that no rank waits for another verdict


class Running:
    """The running trials, also by the processes of their ranks."""

    def __init__(self, grace: float, halving: Halving | None) -> None:
        """Args: the seconds between SIGTERM and SIGKILL, and what prunes trials (None: no trial is pruned)."""
        self._grace = grace
        self._halving = halving
        self._trials: dict[int, Trial] = {}
        self._of_process: dict[int, tuple[Trial, Member]] = {}

    def __iter__(self) -> Iterator[Trial]:
        """Iterate over the trials as they are now."""
        return iter(tuple(self._trials.values()))

    def __len__(self) -> int:
        """The number of trials."""
        return len(self._trials)

    @property
    def deadline(self) -> float | None:
        """The time when `due` has something to do next. None: it has not."""
        return min((trial.end_at for trial in self if trial.end_at is not None), default=None)

    def add(self, trial: Trial) -> None:
        """Note that a trial has begun."""
        self._trials[trial.number] = trial
        self._of_process |= {member.process: (trial, member) for member in trial.members}

    def remove(self, trial: Trial) -> None:
        """Remove a trial, since none of its ranks is left."""
        del self._trials[trial.number]

    def due(self, now: float) -> list[Action]:
        """Return the actions that end ranks that have had their time to end by themselves."""
        actions: list[Action] = []
        for trial in self:
            if trial.end_at is not None and now >= trial.end_at:
                trial.end_at = None
                actions.append(end_ranks(trial, self._grace))
        return actions

    def host_lost(self, host: str, reason: str) -> list[Trial]:
        """Note that the ranks on a host are lost, and return their trials."""
        lost_trials = [trial for trial in self if host in trial.hosts]
        for trial in lost_trials:
            trial.lost = reason
            trial.lost_hosts.add(host)
            for member in trial.members:
                if member.host == host:
                    self.pop(member.process)
        return lost_trials

    def pop(self, process: int) -> tuple[Trial, Member] | None:
        """Note that a process is dead, and return its trial and its rank there. None: it is not a rank."""
        found = self._of_process.pop(process, None)
        if found is not None:
            found[0].alive.discard(process)
        return found

    def activated(self, process: int) -> None:
        """Note that a process that was a spare runs the script."""
        if process in self._of_process:
            self._of_process[process][0].unconfirmed.discard(process)

    def led_by(self, process: int) -> Trial | None:
        """Return the trial that has this process as rank 0. None: there is none."""
        trial, member = self._of_process.get(process, (None, None))
        return trial if member is not None and member.rank == 0 else None

    def rank_ended(
        self, trial: Trial, member: Member, failure: Failure | None, lost_peer: bool, now: float
    ) -> list[Action]:
        """Return the actions that the end of a rank leads to, on the other ranks of its trial.

        `failure` is None if it has not failed. `lost_peer` says whether it merely lost a peer.
        """
        actions: list[Action] = []
        if failure is not None:
            had_failed = trial.failure is not None and not trial.is_consequence
            trial.note_failure(failure, lost_peer)
            if trial.alive and not (had_failed or trial.lost or trial.is_pruned):
                if not lost_peer:
                    actions.append(end_ranks(trial, self._grace))
                elif trial.end_at is None:
                    trial.end_at = now + _ROOT_CAUSE
        if trial.is_pruned and trial.alive and trial.end_at is None:
            trial.end_at = now + self._grace
        if member.rank == 0 and trial.alive and self._halving is not None and not trial.is_pruned:
            actions.append(_tell(trial, Verdict(_LAST, True)))  # without rank 0, the others must not wait for verdicts
        return actions

    def reported(self, trial: Trial, report: Report) -> list[Action]:
        """Note a value of a trial, and decide whether it continues."""
        if not report.number:
            trial.printed = report.value
            return []
        if trial.is_pruned:  # a script that catches the exception, and reports again
            return [_tell(trial, Verdict(report.number, False))]
        trial.reports.append((report.step, report.value))
        if self._halving is None:
            return []
        goes_on = self._halving.judge(trial.number, report.number, report.value)
        trial.is_pruned = not goes_on
        return [_tell(trial, Verdict(report.number, goes_on))]


def end_ranks(trial: Trial, grace: float) -> EndProcesses:
    """Return the action that ends the ranks of a trial that are left."""
    return EndProcesses(frozenset(trial.alive), grace)


def _tell(trial: Trial, verdict: Verdict) -> Tell:
    return Tell(tuple(sorted(trial.alive)), verdict)
