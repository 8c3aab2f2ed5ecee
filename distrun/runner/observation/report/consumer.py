"""The consumer that writes the report: it collects data while the job runs, and writes the page at its end.

The page is written by rename, in the thread that observes: a job whose report cannot be written ends as it would have
without one.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

from distrun import __version__
from distrun.contract.launch import PREFIX
from distrun.contract.settings import WIRE_DTYPE, Settings
from distrun.errors import UsageError
from distrun.host.ranks import list_ranks
from distrun.runner.observation.consumer import Consumer, JobEnd, Source
from distrun.runner.observation.live.sentences import from_script
from distrun.runner.observation.profiling.profiler import Profiler
from distrun.runner.observation.report.collector import Collector
from distrun.runner.observation.report.page import page
from distrun.runner.observation.report.scaling import scaling
from distrun.runner.observation.report.summary import Summary
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.protocol.exits import signal_name
from distrun.tracing.reader import Event

_TIMED_OUT = 124
_DISTRIBUTIONS = ("numpy", "torch", "tensorflow", "tensorflow-cpu", "keras", "tf_keras", "jax", "optax", "mpi4py")


class Report(Consumer):
    """Collects data, and writes one page at the end, however the job ends."""

    title = "the report"

    def __init__(
        self, path: Path, plan: LaunchPlan, say: Callable[[str], None], single_rank_step: float | None = None
    ) -> None:
        """Args: `say` prints a line for the user. `single_rank_step` has the seconds of a step on one rank alone."""
        self._path = path
        self._plan = plan
        self._say = say
        self._single_rank_step = single_rank_step
        self._began = time.monotonic_ns()
        self._began_at = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        self._collector = Collector(self._began)
        self._settings = _settings_of(plan)
        self._profiler = Profiler(None if plan.is_elastic else plan.size, self._settings.get(WIRE_DTYPE, ""))

    def events(self, source: Source, events: Sequence[Event], names: Sequence[str]) -> None:
        self._collector.events(source, events, names)
        self._profiler.events(source, events, names)

    def sample(self, host: str, sample: Mapping[str, Any]) -> None:
        self._collector.sample(host, sample)

    def tick(self, now: int) -> None:
        self._collector.tick(now)

    def close(self, ending: JobEnd) -> None:
        """Write the page."""
        self._collector.close(ending)
        try:
            write(self._path, page(self._summary(ending)))
        except OSError as error:
            self._say(f"the report could not be written to {self._path}: {error.strerror}")
            return
        self._say(f"the report is in {self._path}")

    def _summary(self, ending: JobEnd) -> Summary:
        hosts = {agent.host: [rank.rank for rank in agent.ranks] for agent in self._plan.agents}
        ranks = self._collector.ranks({rank: host for host, ranks in hosts.items() for rank in ranks})
        profiled = self._profiler.profiled()
        return Summary(
            title=f"{from_script(self._plan.command)[0]}, job {self._plan.job[:8]}",
            command=shlex.join(["distrun", *sys.argv[1:]]),
            began=self._began_at,
            seconds=(time.monotonic_ns() - self._began) / 1e9,
            status=ending.status,
            ending=_in_words(ending),
            ranks=ranks,
            hosts=self._collector.hosts(hosts),
            steps=self._collector.steps,
            stragglers=self._collector.stragglers(),
            moments=self._collector.moments(),
            failure_report=ending.failure_report,
            single_rank_step=self._single_rank_step,
            scaling=scaling(profiled, self._single_rank_step),
            settings=self._settings | _chosen(list(self._collector.autotuned)),
            versions=_versions(),
            notes=self._notes([rank.rank for rank in ranks if not rank.seconds]),
            profile=profiled.to_json(),
        )

    def _notes(self, silent: Sequence[int]) -> list[str]:
        """Return sentences about missing data. `silent` are the ranks without events."""
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
        if (unheard := self._collector.unheard()) and not self._plan.is_elastic:  # there, hosts may leave
            notes.append(
                f"The last seconds of {list_ranks(unheard)} are not counted: nothing more was heard of their agent."
            )
        return notes


def _settings_of(plan: LaunchPlan) -> dict[str, str]:
    """Return the settings of the ranks that differ from the defaults, by their variables, without secrets."""
    variables = dict(os.environ)  # ranks on this machine inherit it
    for agent in plan.agents[:1]:
        variables |= agent.environ
    try:
        settings = Settings.of(variables)
    except UsageError:  # the ranks report it
        return {}
    return {
        PREFIX + entry.name.upper(): str(int(value) if isinstance(value, bool) else value)
        for entry in fields(settings)
        if entry.repr and (value := getattr(settings, entry.name)) != entry.default
    }


def _chosen(autotuned: Sequence[str]) -> dict[str, str]:
    """Return the choices of autotuning as rows for the table of settings, in order."""
    if len(autotuned) == 1:
        return {"autotuned": autotuned[0]}
    return {f"autotuned, {place}": text for place, text in enumerate(autotuned, 1)}


def _versions() -> dict[str, str]:
    """Return the versions of the software in the launcher's own environment."""
    found = {"distrun": __version__, "Python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    system = os.uname()
    return found | {"system": f"{system.sysname} {system.release} {system.machine}, {os.cpu_count()} CPUs"}


def _in_words(ending: JobEnd) -> str:
    """Return the outcome as a predicate: `ended well`."""
    if ending.interrupted_by is not None:
        return f"was interrupted by {signal_name(ending.interrupted_by)}"
    if ending.status == _TIMED_OUT and not ending.failure_report.startswith("distrun: rank"):
        return "was ended by --timeout"
    return f"failed with exit status {ending.status}" if ending.status else "ended well"


def check_path(path: Path) -> Path:
    """Return the absolute path of a file that can be written.

    Raises:
        UsageError: the file cannot be written.
    """
    path = path.absolute()
    if os.path.isdir(path):
        raise UsageError(f"--report {path} is a directory: give the name of a file, such as {path / 'report.html'}")
    if not os.path.isdir(path.parent):
        raise UsageError(f"--report {path}: there is no directory {path.parent}: create it, or give another file")
    try:
        tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.").close()
    except OSError as error:
        raise UsageError(
            f"--report {path}: {path.parent} cannot be written to ({error.strerror}): give a file in another directory"
        ) from None
    return path


def write(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the previous contents or all of `text`.

    Raises:
        OSError: it cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.umask(mask := os.umask(0o077))
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
