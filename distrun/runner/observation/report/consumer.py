"""The consumer that writes the report: it gathers while the job runs, and writes the page at its end.

The page is written by rename, in the thread that observes: a job whose report cannot be written ends as it would have
without one.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distrun.contract.settings import WIRE_DTYPE
from distrun.errors import UsageError
from distrun.host.ranks import list_ranks
from distrun.runner.observation.consumer import JobEnd, Source
from distrun.runner.observation.profiling.profiler import Profiler
from distrun.runner.observation.report import facts
from distrun.runner.observation.report.gathering import Collector
from distrun.runner.observation.report.page import page
from distrun.runner.observation.report.scaling import scaling
from distrun.runner.observation.report.summary import Summary
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.protocol.exits import signal_name
from distrun.tracing.reader import Event

_TIMED_OUT = 124


class Report:
    """Gathers, and writes one page at the end, whatever the end is."""

    title = "the report"

    def __init__(
        self, path: Path, plan: LaunchPlan, say: Callable[[str], None], single_rank_step: float | None = None
    ) -> None:
        """
        Args:
            path: the file to write.
            plan: the plan of the job.
            say: tells the user.
            single_rank_step: the seconds of a step on one rank alone, if they are known.
        """
        self._path = path
        self._plan = plan
        self._say = say
        self._single_rank_step = single_rank_step
        self._began = time.monotonic_ns()
        self._began_at = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        self._ending = JobEnd(0)
        self._collector = Collector(self._began)
        self._settings = facts.settings_of(plan, os.environ)
        self._profiler = Profiler.of(plan, self._settings.get(WIRE_DTYPE, ""))

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        """Take new events of a rank."""
        self._collector.events(source, events, names)
        self._profiler.events(source, events, names)

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        """Take what a host's ranks use."""
        self._collector.sample(host, sample)

    def output(self, rank: int, data: bytes) -> None:
        """Output is no part of the report."""

    def tick(self, now: int) -> None:
        """Note the time."""
        self._collector.tick(now)

    def ended(self, ending: JobEnd) -> None:
        """Note how the job has ended."""
        self._ending = ending

    def close(self, status: int) -> None:
        """Write the page."""
        self._collector.close(status)
        try:
            write(self._path, page(self.summary()))
        except OSError as error:
            self._say(f"the report could not be written to {self._path}: {error.strerror}")
            return
        self._say(f"the report is in {self._path}")

    def summary(self) -> Summary:
        """Return what is known."""
        hosts = facts.hosts_of(self._plan)
        ranks = self._collector.ranks({rank: host for host, ranks in hosts.items() for rank in ranks})
        profiled = self._profiler.profiled()
        return Summary(
            command=facts.command_line(),
            began=self._began_at,
            seconds=(time.monotonic_ns() - self._began) / 1e9,
            status=self._ending.status,
            ending=ending_in_words(self._ending),
            ranks=ranks,
            hosts=self._collector.hosts(hosts),
            steps=self._collector.steps,
            stragglers=self._collector.stragglers(),
            moments=self._collector.moments(),
            failure_report=self._ending.failure_report,
            single_rank_step=self._single_rank_step,
            scaling=scaling(profiled, self._single_rank_step),
            settings=self._settings | facts.chosen(list(self._collector.autotuned)),
            versions=facts.versions(),
            notes=self._notes([rank.rank for rank in ranks if not rank.seconds]),
            profile=profiled.to_json(),
        )

    def _notes(self, silent: Sequence[int]) -> list[str]:
        """Return sentences about what is missing; `silent` are the ranks that have told nothing."""
        if self._plan.by_mpirun:
            return ["Ranks that mpirun starts tell the launcher nothing."]
        notes = []
        if silent and len(silent) < self._plan.size:
            notes.append(
                f"Nothing was heard of {list_ranks(silent)}: they use no distrun, or another launcher has started "
                "them. What they made others wait for counts as moving data here."
            )
        if missing := self._collector.missing_steps:
            notes.append(
                f"{missing.total()} steps of {list_ranks(sorted(missing))} are not counted: their agent was stopped or "
                "cut off for so long that newer records replaced those of these steps."
            )
        return notes


def ending_in_words(ending: JobEnd) -> str:
    """Return a predicate for the job: `ended well`."""
    if ending.interrupted_by is not None:
        return f"was interrupted by {signal_name(ending.interrupted_by)}"
    if ending.status == _TIMED_OUT and not ending.failure_report.startswith("distrun: rank"):
        return "was ended by --timeout"
    return f"failed with exit status {ending.status}" if ending.status else "ended well"


def check_path(path: Path) -> Path:
    """Return the absolute path of a file that can be written.

    Raises:
        UsageError: it cannot.
    """
    path = path.absolute()
    if path.is_dir():
        raise UsageError(f"--report {path} is a directory: give the name of a file, such as {path / 'report.html'}")
    if not path.parent.is_dir():
        raise UsageError(f"--report {path}: there is no directory {path.parent}: create it, or give another file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"--report {path}: {path.parent} cannot be written to: give a file in another directory")
    return path


def write(path: Path, text: str) -> None:
    """Write a file as a whole: a reader sees what was there before, or all of this.

    Raises:
        OSError: it cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
