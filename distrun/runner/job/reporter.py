"""Printing for the user: the ranks' output, progress, and the failure report."""

from __future__ import annotations

from collections.abc import Callable

from distrun.runner.decisions import events
from distrun.runner.decisions.failure import Failure
from distrun.runner.decisions.failure_report import StderrTails, format_activities, format_report
from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.job.mistakes import SilentMistakes
from distrun.runner.job.options import JobOptions
from distrun.runner.output.printer import Printer
from distrun.runner.output.recent import Recent
from distrun.runner.output.sinks import RankFiles, Sink
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.protocol.exits import signal_name
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.tracing.activity import ActivityDescription


class Reporter:
    """Prints for the user. Frames and events have numbers of processes, which are ranks unless the job is elastic."""

    def __init__(
        self,
        options: JobOptions,
        stdout: Sink,
        stderr: Sink,
        files: RankFiles | None,
        rank_of: Callable[[int], int],
        name_of: Callable[[int], str],
        post: Callable[[events.Event], None],
        recent: Recent,
    ) -> None:
        """`rank_of` and `name_of` return a process's current rank, and its name, such as `rank 3 on alpha`. `recent`
        gets all output, and the others are for the `Printer`.
        """
        self.stderr_tails = StderrTails()
        self.activities: dict[int, ActivityDescription] = {}
        """The activities of ranks at the moment when the first one failed."""
        self._options = options
        self._files = files
        self._rank_of = rank_of
        self._name_of = name_of
        self._printer = Printer(stdout, stderr, options.style, files, post, options.panel)
        self._recent = recent
        self._pids: dict[int, int] = {}
        self._mistakes = SilentMistakes()

    def start(self) -> None:
        """Start the printing thread."""
        self._printer.start()

    def say(self, text: str) -> None:
        """Print a line of the launcher's own."""
        self._printer.say(f"distrun: {text}")

    def log(self, text: str) -> None:
        """Print a line that only --verbose shows."""
        if self._options.verbose:
            self.say(text)

    def output(self, agent: AgentClient, frame: Frame) -> None:
        """Print output of a process, and acknowledge it to its agent (an agent's thread)."""
        stream = "stdout" if frame.kind is FrameKind.STDOUT else "stderr"
        if stream == "stderr":
            self.stderr_tails.record(frame.process, frame.payload)
        else:
            self._mistakes.output(frame.process, frame.payload)
        rank = self._rank_of(frame.process)
        self._recent.add(rank, stream, frame.payload)
        is_shown = frame.kind is not FrameKind.TRACEBACK
        self._printer.output(rank, stream, frame.payload, agent.acknowledge, is_shown)

    def note(self, event: events.Event) -> None:
        """Print a line about an event, if it is of interest to the user."""
        match event:
            case events.HostReady(host, note) if note:
                self.say(f"host {host} {note}")
            case events.RankStarted(process, pid, cpus):
                self._pids[process] = pid
                self.log(f"{self._name_of(process)} started (pid {pid})")
                if self._options.bindings or (cpus and self._options.verbose):
                    bound = f"is bound to CPUs {cpus}" if cpus else "is not bound"
                    self.say(f"{self._name_of(process)} {bound}")
            case events.RankExited(process, end):
                self._mistakes.exited(end)
                self.log(f"{self._name_of(process)} {end}")
            case events.AgentGone(host, ended, unkillable):
                if unkillable:
                    self.say(f"processes on {host} that do not end, not even by SIGKILL: {unkillable}")
                if ended:
                    self._mistakes.left_behind(ended)
                    self.log(f"the agent on {host} ended what ranks had left behind, processes: {ended}")
            case events.SignalReceived(signum, ""):
                self.log(f"received signal {signum}")
            case events.SignalReceived(signum, host):
                self.say(f"the launcher on {host} received {signal_name(signum)}")
            case _:
                pass

    def forget(self, process: int) -> None:
        """Forget a process that is gone and that no later report mentions."""
        self.stderr_tails.forget(process)
        self._pids.pop(process, None)

    def name_with_pid(self, process: int) -> str:
        """Return the name of a process that was started, such as `rank 3 on alpha (pid 4711)`."""
        return f"{self._name_of(process)} (pid {self._pids[process]})"

    def failure_report(self, failure: Failure) -> str:
        """Return the report of the first failure."""
        process = failure.rank
        if process is None:
            report = format_report(failure, "", self._pids, [])
        else:
            log = None if self._files is None else str(self._files.path(self._rank_of(process), "stderr"))
            words = self.stderr_tails.lines(process)
            report = format_report(failure, self._name_of(process), self._pids, words, log)
        return "\n".join([report, *format_activities(self.activities)])

    def tell_same_samples(self, plan: LaunchPlan, rank: int, digest: int) -> None:
        """Note the digest of a rank's first gradients, and print that all ranks have the same one (an agent's
        thread).
        """
        if (sentence := self._mistakes.first_gradients(plan, rank, digest)) and self._options.notes:
            self.say(sentence)

    def tell_mistakes(self, plan: LaunchPlan) -> None:
        """Print what shows that ranks that have ended well have not worked together."""
        if self._options.notes and (sentence := self._mistakes.sentence(plan)):
            self.say(sentence)

    def close(self, failure_report: str | None) -> None:
        """Print the remaining output, and the failure report last. `events.Printed` is posted when that is done."""
        self._printer.close(failure_report)
