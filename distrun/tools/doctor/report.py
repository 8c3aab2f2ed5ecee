"""The findings of the doctor, as frozen data and as the JSON object of `distrun doctor --json`.

The format of that object is stable: members may be added, and `format` grows when a member changes its meaning.

    {"format": 1, "distrun": VERSION, "ok": true, "summary": SENTENCE,
     "hosts": [{"host": NAME, "local": false, "status": STATUS,
                "steps": [{"step": NAME, "status": STATUS, "text": .., "command": .., "remedy": ..}, ..],
                "machine": MACHINE or null, "gpus": GPUS or null, "gpu_checks": CHECKS or null}, ..],
     "links": [{"from": NAME, "to": NAME, "status": STATUS, "from_address": .., "to_address": .., "round_trip_s": ..,
                "bytes_per_s": .., "packets_sent": .., "packets_lost": .., "largest_packet": .., "text": ..,
                "command": .., "remedy": ..}, ..],
     "notes": [SENTENCE, ..]}

STATUS is "ok", "warning", "failed" or "not tried". MACHINE and GPUS have the members of `machine_facts.MachineFacts`
and `gpus.Gpus`. CHECKS is there with `--gpu`: "nvml", "kernel" and "xids" have the members of the classes of those
modules in `gpu_checks`, "copies" and "allreduce" are what its programs `copies` and `ranks` print.

A link is one direction between two hosts. Addresses and figures that could not be measured are null. The packets are
counted in one transfer. "largest_packet" is the size in bytes, with headers, of the largest packet that arrives, if
larger ones were found to be lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from distrun import __version__
from distrun.host.ranks import count
from distrun.tools.doctor.gpus import Gpus
from distrun.tools.doctor.machine_facts import MachineFacts

FORMAT = 1
_ENDS = {"source": "from", "target": "to", "source_address": "from_address", "target_address": "to_address"}
_JSON_NAMES = _ENDS | {"name": "step", "round_trip": "round_trip_s", "bandwidth": "bytes_per_s"}
"""The members of steps and links whose names differ from those of `HostCheck` and `LinkReport`."""


class Status(str, Enum):
    """The result of a step."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    NOT_TRIED = "not tried"


_GRAVITY = (Status.FAILED, Status.WARNING, Status.NOT_TRIED, Status.OK)


@dataclass(frozen=True)
class HostCheck:
    """One check on one host."""

    name: str
    status: Status
    text: str = ""
    """The finding, or the reason why the step failed. It may have several lines."""
    command: str = ""
    """A command for this machine that shows the same. Empty unless the step failed or gave a warning."""
    remedy: str = ""


@dataclass(frozen=True)
class HostReport:
    """The findings about one host."""

    host: str
    local: bool
    steps: tuple[HostCheck, ...]
    machine: MachineFacts | None = None
    gpus: Gpus | None = None
    gpu_checks: dict[str, Any] | None = None

    @property
    def status(self) -> Status:
        """The status of the worst step, or OK if there are none."""
        return min((step.status for step in self.steps), key=_GRAVITY.index, default=Status.OK)


@dataclass(frozen=True)
class LinkReport:
    """The findings about the network from one host to another. The other direction has its own report."""

    source: str
    target: str
    status: Status
    source_address: str | None = None
    target_address: str | None = None
    round_trip: float | None = None
    """The median round trip in seconds."""
    bandwidth: float | None = None
    """Bytes per second of one TCP connection."""
    packets_sent: int | None = None
    """The number of packets of data in a transfer."""
    packets_lost: int | None = None
    """The number of these that had to be sent again."""
    largest_packet: int | None = None
    """The bytes of the largest packet that arrives, with headers, if larger ones do not. Otherwise None."""
    text: str = ""
    command: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """The findings of a run."""

    hosts: tuple[HostReport, ...]
    links: tuple[LinkReport, ...] = ()
    notes: tuple[str, ...] = ()
    """Differences between hosts that deserve a warning, and checks that were left out, a sentence each."""

    @property
    def ok(self) -> bool:
        """Whether nothing failed. Warnings do not count."""
        statuses = [*(host.status for host in self.hosts), *(link.status for link in self.links)]
        return Status.FAILED not in statuses

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        failures = [
            f"{host.host} failed at {step.name}"
            for host in self.hosts
            for step in host.steps
            if step.status is Status.FAILED
        ]
        failures += [
            f"{link.source} cannot talk to {link.target}" for link in self.links if link.status is Status.FAILED
        ]
        steps = [step.status for host in self.hosts for step in host.steps] + [link.status for link in self.links]
        warnings = count(found, "warning") if (found := steps.count(Status.WARNING)) else "no warning"
        return f"{count(len(self.hosts), 'host')}, {'; '.join(failures) or 'nothing failed'}, {warnings}"

    @property
    def exit_status(self) -> int:
        """The exit status of `distrun doctor`: 1 if something failed, otherwise 0."""
        return 0 if self.ok else 1

    def to_json(self) -> dict[str, Any]:
        """Return the object that the module's docstring describes."""
        return {
            "format": FORMAT,
            "distrun": __version__,
            "ok": self.ok,
            "summary": self.summary,
            "hosts": [_host(host) for host in self.hosts],
            "links": [_members(link) for link in self.links],
            "notes": list(self.notes),
        }


def _host(host: HostReport) -> dict[str, Any]:
    return {
        "host": host.host,
        "local": host.local,
        "status": host.status.value,
        "steps": [_members(step) for step in host.steps],
        "machine": None if host.machine is None else asdict(host.machine),
        "gpus": None if host.gpus is None else asdict(host.gpus),
        "gpu_checks": host.gpu_checks,
    }


def _members(item: HostCheck | LinkReport) -> dict[str, Any]:
    return {_JSON_NAMES.get(name, name): value for name, value in asdict(item).items()}
