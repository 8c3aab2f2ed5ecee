"""The steps on one host, in order. After a step that fails, the others are not tried."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from distrun.errors import UsageError
from distrun.host.interfaces import Interface, matching
from distrun.runner.protocol.handshake import HostError, check_compatibility
from distrun.runner.system.installation import install_command
from distrun.tools.doctor import verdicts
from distrun.tools.doctor.connect import Access
from distrun.tools.doctor.gpu_checks import steps as gpu_steps
from distrun.tools.doctor.gpus import Gpus
from distrun.tools.doctor.machine_facts import MachineFacts
from distrun.tools.doctor.probe_client import ProbeClient
from distrun.tools.doctor.report import HostCheck, HostReport, Status
from distrun.tools.doctor.shell_commands import ShellCommands

_STARTING = ("python", "distrun", "directory", "clock")
_EXAMINING = ("machine", "gpus", "network", "software")  # these do not depend on one another
_CLOCK_READINGS = 5
_OLDER = re.compile(r"No module named '?distrun\.")  # runpy's message where a module of distrun is missing
_QUICK = 10.0  # seconds for a question that is answered at once
_SLOW = 40.0  # seconds for a question about installed software, on a slow file system, or about GPUs


@dataclass(frozen=True)
class CheckOptions:
    """The options of a run, which all hosts share."""

    python: str
    """The Python of other hosts."""
    wdir: str
    """The working directory of the ranks."""
    network: str
    """The value of `--network`."""
    timeout: float
    """Seconds until a probe must have started."""
    gpu: bool = False
    """Whether to make the checks of GPUs that take longer."""


class HostChecks:
    """The checks of one host, and the probe, which keeps running if they succeed."""

    def __init__(self, host: str, access: Access, commands: ShellCommands, options: CheckOptions) -> None:
        """Args: the name of the host, the access to it, the commands for a person, and the options of the run."""
        self.commands = commands
        self.host = host
        self._access = access
        self._is_local = not access.steps
        self._options = options
        self._python = sys.executable if self._is_local else options.python
        self._refusal: HostError | None = None
        self._steps: list[HostCheck] = []
        self.probe: ProbeClient | None = None
        """The running probe. None before it has started, after a step has failed, and once this object is closed."""
        self.machine: MachineFacts | None = None
        self._gpus_found: Gpus | None = None
        self._gpu_checks: dict[str, Any] | None = None

    def run(self) -> HostReport:
        """Take the steps, and return the findings."""
        names = (*self._access.steps, *_STARTING, *_EXAMINING)
        if self._is_local:
            names = tuple(name for name in names if name != "clock")  # others are compared with it
        stopped = False
        for name in names:
            step = HostCheck(name, Status.NOT_TRIED) if stopped else self._check(name)
            self._steps.append(step)
            lost = self.probe is not None and self.probe.is_lost
            stopped = stopped or (step.status is Status.FAILED and (lost or name not in _EXAMINING))
        if not stopped and self._options.gpu and self._gpus_found is not None and self._gpus_found.names:
            self._check_gpus()
        if stopped:
            self.close()
        return HostReport(
            self.host, self._is_local, tuple(self._steps), self.machine, self._gpus_found, self._gpu_checks
        )

    def close(self) -> None:
        """End the probe, and the connection."""
        if self.probe is not None:
            self.probe.close()
            self.probe = None
        self._access.close()

    def _check(self, name: str) -> HostCheck:
        works: dict[str, Callable[[], HostCheck]] = {
            "python": self._start,
            "distrun": self._distrun,
            "directory": self._directory,
            "clock": self._clock,
            "machine": self._machine,
            "gpus": self._gpus,
            "network": self._network,
            "software": self._software,
        }
        try:
            step = works[name]() if name in works else self._access.check(name)
        except HostError as error:
            reason, remedy = verdicts.split_remedy(str(error))
            step = HostCheck(name, Status.FAILED, reason, remedy=remedy)
        except Exception as error:  # any exception: the report on the other hosts must not be lost
            step = HostCheck(name, Status.FAILED, repr(error))
        return self._completed(step)

    def _completed(self, step: HostCheck) -> HostCheck:
        """Return a step with the command that shows the same, and a remedy, if it failed or gave a warning."""
        if step.status in (Status.OK, Status.NOT_TRIED):
            return step
        remedy = step.remedy or "see what the command says"
        return replace(step, command=step.command or self.commands.step(step.name), remedy=remedy)

    # --- starting a probe

    def _start(self) -> HostCheck:
        try:
            self.probe = ProbeClient(self._access.start(self._python), self._options.timeout)
        except HostError as error:
            if "distrun is not installed" in str(error):
                self._refusal = error
            elif _OLDER.search(str(error)):
                self._refusal = HostError(
                    "an older distrun is installed there, which has no doctor; "
                    f"run there {install_command(self._python)}"
                )
            else:
                raise
            return HostCheck("python", Status.OK, self._python)  # which works
        answer = self.probe.versions
        note = check_compatibility(answer, self._python, answer.distrun)
        text = f"{self._python} ({answer.python})"
        if not note:
            return HostCheck("python", Status.OK, text)
        return HostCheck(
            "python", Status.WARNING, f"{text}: it {note}", remedy="give the path of another with --python"
        )

    def _distrun(self) -> HostCheck:
        if self._refusal is not None:
            raise self._refusal
        assert self.probe is not None
        answer, note = self.probe.versions, self.probe.note
        check_compatibility(answer, self._python)
        return HostCheck("distrun", Status.OK, f"{answer.distrun} (the host {note})" if note else answer.distrun)

    def _directory(self) -> HostCheck:
        wdir = self._options.wdir
        found = self._ask("directory", _QUICK, path=wdir)
        if not found["exists"]:
            raise HostError(
                f"the working directory {wdir!r} does not exist there; give one that does with --wdir, or create it"
            )
        if not found["usable"]:
            raise HostError(f"the working directory {wdir!r} may not be entered there; give another with --wdir")
        return HostCheck("directory", Status.OK, wdir)

    def _clock(self) -> HostCheck:
        readings = []
        for _ in range(_CLOCK_READINGS):
            before, start = time.time(), time.monotonic()
            theirs = self._ask("clock", _QUICK)["time"]
            round_trip = time.monotonic() - start
            readings.append((round_trip, theirs - (before + round_trip / 2)))
        round_trip, offset = min(readings)
        return verdicts.clock(offset, round_trip)

    # --- examining the host

    def _machine(self) -> HostCheck:
        self.machine = MachineFacts(**self._ask("machine", _SLOW))
        return verdicts.machine(self.machine)

    def _gpus(self) -> HostCheck:
        self._gpus_found = Gpus(**self._ask("gpus", _SLOW))
        if not self._options.gpu:
            return verdicts.gpus(self._gpus_found)
        found = replace(self._gpus_found, iommu=[])  # which has a step of its own
        return verdicts.gpus(found) if found.names or found.problem else verdicts.no_gpu()

    def _check_gpus(self) -> None:
        self._gpu_checks = {}
        try:
            for step in gpu_steps.take(self._ask, self._gpu_checks):
                self._steps.append(self._completed(step))
        except Exception as error:  # any exception: the report on the other hosts must not be lost
            text = str(error) if isinstance(error, HostError) else repr(error)
            self._steps.append(HostCheck("gpu", Status.FAILED, f"the checks of GPUs were broken off: {text}"))

    @property
    def identity(self) -> str:
        """A text that identifies the host's machine under any name, or empty if it is not known."""
        return "" if self.probe is None else self.probe.versions.machine

    def interfaces(self) -> list[Interface]:
        """Return the interfaces that other hosts can reach, or none if this host was not reached."""
        return [Interface(*item) for item in self.machine.interfaces] if self.machine is not None else []

    def _network(self) -> HostCheck:
        try:
            chosen = matching(self.interfaces(), self._options.network, f"host {self.host!r}")
        except UsageError as error:
            reason, _, remedy = str(error).partition(": ")
            return HostCheck("network", Status.FAILED, reason, remedy=remedy)
        text = ", ".join(f"{item.name} {item.address}/{item.prefix}" for item in chosen)
        return HostCheck("network", Status.OK, text or "no interface that other hosts may know")

    def _software(self) -> HostCheck:
        if self.machine is None:
            return HostCheck("software", Status.NOT_TRIED)
        return verdicts.software(self.machine)

    def _ask(self, what: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        assert self.probe is not None
        return self.probe.ask(what, timeout, **arguments)
