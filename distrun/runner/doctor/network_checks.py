"""The network between the hosts: every pair is measured, and no host takes part in two measurements at once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distrun.errors import UsageError
from distrun.host.endpoints import PORTS
from distrun.host.interfaces import Interface
from distrun.runner.doctor import verdicts
from distrun.runner.doctor.probe_client import ProbeClient
from distrun.runner.doctor.report import LinkReport, Status
from distrun.runner.doctor.shell_commands import ShellCommands
from distrun.runner.planning.networks import Networks
from distrun.runner.protocol.handshake import HostError
from distrun.runner.system.fan_out import call_for_each

MAX_ROUNDS = 31  # with more than 32 hosts, each is measured with 31 others
_MAX_ADDRESSES = 4  # of one host that are tried
_QUICK = 10.0  # seconds for a question that costs nothing
_MEASURING = 30.0  # seconds for all measurements of a pair, each of which has a deadline of its own


@dataclass(frozen=True)
class ProbedHost:
    """A host whose probe waits for requests."""

    host: str
    probe: ProbeClient
    interfaces: Sequence[Interface]
    commands: ShellCommands


def rounds(count: int, most: int = MAX_ROUNDS) -> list[list[tuple[int, int]]]:
    """Return all pairs of `count` hosts in rounds, in each of which no host is in two pairs.

    The algorithm is that of round-robin tournaments (the circle method): one host stays, the others move on by one
    place from round to round, and with an odd number one of them pauses. In a pair the lower number comes first. Only
    the first `most` rounds are returned.
    """
    places: list[int | None] = [*range(count), *([None] * (count % 2))]
    found = []
    for _ in range(min(most, max(0, len(places) - 1))):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def measure(ends: Sequence[ProbedHost], network: str) -> tuple[list[LinkReport], list[str]]:
    """Measure the network between all hosts; return the links, both directions of each pair, and notes for the user.

    Args:
        ends: the hosts.
        network: the value of `--network`.
    """
    found: dict[tuple[str, str], LinkReport] = {}
    schedule = rounds(len(ends))
    for pairs in schedule:
        measured = call_for_each(lambda pair: _pair(ends[pair[0]], ends[pair[1]], network, len(ends)), pairs, "doctor")
        found |= {(item.source, item.target): item for items in measured for item in items}
    order = [end.host for end in ends]
    links = [found[pair] for pair in ((one, other) for one in order for other in order) if pair in found]
    notes = []
    if len(ends) > len(schedule) + 1:
        notes.append(f"with {len(ends)} hosts, each was measured with {len(schedule)} of the others only")
    return links, notes


def _pair(first: ProbedHost, second: ProbedHost, network: str, hosts: int) -> list[LinkReport]:
    """Measure one pair: the second host connects to the first, as ranks connect to rank 0, and then the first to it.

    Which host has rank 0 depends on the order in which a job lists them, so both must be able to connect.
    """
    try:
        both = Networks({first.host: first.interfaces, second.host: second.interfaces}, network)
    except UsageError as error:
        return [LinkReport(second.host, first.host, Status.FAILED, text=str(error), remedy="change --network")]
    tried: list[tuple[str, str]] = []
    for interface in both.of(first.host)[:_MAX_ADDRESSES]:
        try:
            links = _over(first, second, interface.address)
        except HostError as error:
            tried.append((interface.address, str(error)))
            continue
        there, back = (verdicts.link(item, hosts) for item in links)
        back = _refused_connection(first, second, both) or back
        return [_complete(item, first, second) for item in (there, back)]
    own = [item.address for item in both.of(second.host)[:_MAX_ADDRESSES]]
    return [_complete(verdicts.unreachable(second.host, first.host, tried, own), first, second)]


def _refused_connection(source: ProbedHost, target: ProbedHost, both: Networks) -> LinkReport | None:
    """Return the report on a host that cannot connect to another one; None if it can."""
    tried: list[tuple[str, str]] = []
    for interface in both.of(target.host)[:_MAX_ADDRESSES]:
        key = secrets.token_hex(32)
        try:
            port = _listen(target, interface.address, key)
            try:
                source.probe.ask("connect", _QUICK, address=interface.address, port=port, key=key)
            finally:
                target.probe.ask("stop_listening", _QUICK)
        except HostError as error:
            tried.append((interface.address, str(error)))
            continue
        return None
    own = [item.address for item in both.of(source.host)[:_MAX_ADDRESSES]]
    return verdicts.unreachable(source.host, target.host, tried, own)


def _listen(host: ProbedHost, address: str, key: str) -> int:
    """Have a host listen at one of its addresses, and return the port. Raises HostError."""
    found = host.probe.ask("listen", _QUICK, address=address, key=key, ports=os.environ.get(PORTS, ""))
    return int(found["port"])


def _over(first: ProbedHost, second: ProbedHost, address: str) -> tuple[LinkReport, LinkReport]:
    key = secrets.token_hex(32)  # for this measurement only
    port = _listen(first, address, key)
    try:
        found = second.probe.ask("measure", _MEASURING, address=address, port=port, key=key)
    finally:
        served = first.probe.ask("stop_listening", _QUICK)
    there = LinkReport(
        second.host, first.host, Status.OK, found["address"], address, found["round_trip"], served["rate"]
    )
    back = LinkReport(first.host, second.host, Status.OK, address, found["address"], found["round_trip"], found["rate"])
    return there, back


def _complete(link: LinkReport, first: ProbedHost, second: ProbedHost) -> LinkReport:
    """Return a link with the command that shows its problem, if it has one."""
    if link.status is Status.OK:
        return link
    ends: Mapping[str, ProbedHost] = {first.host: first, second.host: second}
    source, target = ends[link.source], ends[link.target]
    if link.target_address is None:
        return replace(link, command=source.commands.there("ip -brief address"))
    if link.bandwidth is None:
        return replace(link, command=source.commands.there(f"ping -c 3 {link.target_address}"))
    serve = target.commands.there("iperf3 -s -1")
    call = source.commands.there(f"iperf3 -c {link.target_address}")
    return replace(link, command=f"{serve} & {call}")
