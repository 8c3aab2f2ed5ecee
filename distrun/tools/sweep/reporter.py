"""The reporter of a sweep: it reports and records how trials begin and end, and writes the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from distrun.runner.decisions.failure_report import format_report, gpu_number_remedy, missing_module_remedy
from distrun.tools.sweep.output import TrialOutput
from distrun.tools.sweep.plan import SweepPlan
from distrun.tools.sweep.policy.trials import State, Trial
from distrun.tools.sweep.results.ending import write_results
from distrun.tools.sweep.results.table import View


class Reporter:
    """Reports and records trials as they begin and end. Only the thread that decides may call it."""

    def __init__(
        self, plan: SweepPlan, output: TrialOutput, view: View, reports_failures: bool, say: Callable[[str], None]
    ) -> None:
        """`reports_failures` says whether the user sees the report of a failure as soon as a trial has failed."""
        self.view = view
        self._plan = plan
        self._output = output
        self._reports_failures = reports_failures
        self._say = say
        self._pids: dict[int, int] = {}

    def started(self, process: int, pid: int) -> None:
        """Note the PID of a process on its host."""
        self._pids[process] = pid

    def began(self, trial: Trial) -> list[str]:
        """Record that a trial begins, and return its command."""
        command = self._plan.template.command(trial.values)
        self._output.begin(trial)
        self._plan.record.began(trial, command)
        return command

    def ended(self, trial: Trial, trials: Mapping[int, Trial]) -> None:
        """Record and report how a trial has ended. If it has failed, it gets its failure report here."""
        if trial.failure is not None:
            trial.failure_text = self._failure_text(trial)
        self._output.end(trial)
        for member in trial.members:
            self._pids.pop(member.process, None)
        self._plan.record.ended(trial, self._plan.template.command(trial.values))
        self.view.ended(trial, trials)
        if trial.state is State.FAILED and self._reports_failures:
            self._say("\n".join(f"    {line}" for line in trial.failure_text.split("\n")).lstrip())

    def conclude(self, trials: Mapping[int, Trial], is_interrupted: bool) -> None:
        """Write the results, and print where they are and, if the sweep was interrupted, how to resume it."""
        plan = self._plan
        folder, ranks = plan.record.folder, plan.limits.ranks
        for line in write_results(folder, plan.template, ranks, plan.minimizes, list(trials.values())):
            self._say(line)
        plan.record.flush()
        if plan.record.problem is not None:
            self._say(
                f"{folder}/trials.jsonl lacks how the last trials ended ({plan.record.problem}), so "
                "--resume would run them again"
            )
        if is_interrupted:
            self._say(
                f"to go on, run distrun sweep --resume {folder} with hosts and other options as before; "
                "the command, -np, --trials, --metric, --prune, --seed and the direction are kept"
            )
        plan.record.close()

    def _failure_text(self, trial: Trial) -> str:
        """Return the report of a trial's failure."""
        failure = trial.failure
        assert failure is not None
        member = next((member for member in trial.members if member.process == failure.rank), None)
        if member is None:
            return f"trial {trial.number} {failure.what}"
        name = f"rank {member.rank} of trial {trial.number} on {member.host}"
        words = self._output.tails.lines(member.process)
        log = self._output.path(trial)
        lines = [format_report(failure, name, self._pids, words, None if log is None else str(log))]
        lines += gpu_number_remedy(self._output.tails, member.process)
        if self._plan.hosts[member.host][1] is not None:  # not this machine
            lines += missing_module_remedy(self._output.tails, member.process, member.host)
        text = "\n".join(lines).replace("distrun: ", "")
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
