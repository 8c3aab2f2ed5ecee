"""The network for a prediction: given, measured by the job or by `distrun doctor`, or assumed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distrun.errors import UsageError
from distrun.runner.observation.prediction import calibration
from distrun.runner.observation.prediction.model import Network
from distrun.runner.observation.prediction.profile import JobProfile, MeasuredLink
from distrun.runner.observation.prediction.units import bits_per_second, shown_rate

EFFICIENCY, EFFICIENCY_DEVIATION = 0.8, 0.2
"""The share of a link that gradients get, and its standard deviation, if not measured. See docs/predicting.md."""
LEAST_EFFICIENCY = 0.02
LATENCY = 50e-6
"""Seconds from host to host if neither given nor measured: usual for TCP within a building."""
LOCAL_BYTES_PER_S = 5e9
"""Bytes per second that each rank combines with others on its host, if not measured."""


@dataclass(frozen=True)
class Assumptions:
    """A network, and its uncertainty."""

    network: Network
    efficiency_deviation: float
    """The standard deviation of the efficiency."""
    notes: tuple[str, ...]
    """The assumptions, a sentence each."""
    job_network: Network | None = None
    """The network that the job itself ran on. None = unknown."""

    def with_fabric(self, bits_per_s: float) -> Assumptions:
        """Return the same with a limit of the rate that all hosts together send at."""
        return replace(self, network=replace(self.network, fabric_bits_per_s=bits_per_s))


def given_link(text: str) -> MeasuredLink:
    """Return the link for the value of `--link`: a speed, or the slowest link in a file of `distrun doctor --json`.

    Raises:
        UsageError: the text is neither.
    """
    try:
        return MeasuredLink(bits_per_second(text))
    except UsageError as error:
        if not Path(text).is_file():
            raise UsageError(f"{error}, or a file that `distrun doctor -H a,b --json` has written") from None
        return _measured_by_doctor(Path(text))


def _measured_by_doctor(file: Path) -> MeasuredLink:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
        links = [link for link in found["links"] if link["bytes_per_s"]]
        slowest = min(links, key=lambda link: link["bytes_per_s"])
        delays = [link["round_trip_s"] / 2 for link in links if link["round_trip_s"]]
        return MeasuredLink(float(slowest["bytes_per_s"]) * 8, max(delays, default=None))
    except (OSError, ValueError, TypeError, KeyError):
        raise UsageError(
            f"{file} holds no link that the doctor has measured: write one by `distrun doctor -H a,b --json > {file}`, "
            "or give the speed of a link, 25gbit"
        ) from None


def assumptions(
    profile: JobProfile,
    link: MeasuredLink | None,
    latency: float | None,
    efficiency: float | None,
    hosts: int,
    ranks_per_host: int,
) -> Assumptions:
    """Return the network of a prediction.

    Args:
        profile: the job's profile.
        link: the given link. None = not given.
        latency: the given seconds from host to host. None = not given.
        efficiency: the given share of a link that gradients get. None = not given.
        hosts: the largest number of hosts.
        ranks_per_host: the number of ranks of each host.

    Raises:
        UsageError: there are several hosts, and the speed of their links is unknown.
    """
    notes = []
    measured = calibration.between_hosts(profile, LATENCY if latency is None else latency)
    if measured and hosts > 1 and not (link or profile.link or efficiency):
        profile = replace(profile, link=MeasuredLink(measured.rate * 8))
        notes.append(
            "Links are taken to be as fast as gradients were between the hosts of this job, "
            f"{shown_rate(measured.rate * 8)}: --link gives their true speed."
        )
    target, own = link or profile.link, profile.link or link
    network = Network(target.bits_per_s if target else 1e10, 1.0, 0.0, LOCAL_BYTES_PER_S)
    deviation = 0.0
    if ranks_per_host > 1:
        network, said = _with_local(network, profile)
        notes += said
    if hosts > 1:
        if target is None:
            raise UsageError(
                f"the speed of the links between {hosts} hosts is not known: give it by --link 25gbit, or --link FILE "
                "with what `distrun doctor -H a,b --json` has written"
            )
        network, deviation, said = _with_wire(network, profile, link, latency, efficiency)
        notes += said
    job_network = None
    if profile.hosts == 1 or (hosts > 1 and own):
        job_network = replace(network, bits_per_s=own.bits_per_s if own else network.bits_per_s)
    return Assumptions(network, deviation, tuple(notes), job_network)


def _with_local(network: Network, profile: JobProfile) -> tuple[Network, list[str]]:
    if found := calibration.within_host(profile):
        return replace(network, local_bytes_per_s=found.rate, overhead=found.overhead), []
    rate = f"{LOCAL_BYTES_PER_S / 1e9:.3g} GB/s"
    return network, [f"The ranks of a host are assumed to combine {rate} each."]


def _with_wire(
    network: Network, profile: JobProfile, link: MeasuredLink | None, latency: float | None, efficiency: float | None
) -> tuple[Network, float, list[str]]:
    """Return the network with the links' properties, the deviation of the efficiency, and notes on assumptions."""
    notes = []
    delays = [latency, link.latency_s if link else None, profile.link.latency_s if profile.link else None]
    delay = next((value for value in delays if value is not None), None)
    if delay is None:
        delay = LATENCY
        notes.append(f"The delay from host to host is assumed to be {LATENCY * 1e6:.3g} us: --latency gives another.")
    network = replace(network, latency=delay)
    if efficiency is not None:
        return replace(network, efficiency=efficiency), 0.0, notes
    own = profile.link or link
    found = calibration.between_hosts(profile, delay)
    if found and own:
        if profile.link is None:
            notes.append("The job is taken to have run on links of the same speed.")
        share = min(max(found.rate * 8 / own.bits_per_s, LEAST_EFFICIENCY), 1.0)
        return replace(network, efficiency=share, overhead=found.overhead), found.deviation * share, notes
    notes.append(
        f"Gradients are assumed to get {EFFICIENCY:.0%} +- {EFFICIENCY_DEVIATION:.0%} of a link: --efficiency gives "
        "another share, and a profile of 2 hosts has its own."
    )
    return replace(network, efficiency=EFFICIENCY), EFFICIENCY_DEVIATION, notes
