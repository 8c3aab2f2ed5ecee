"""The network between the hosts: the probes of each pair connect to each other, and measure both directions."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distrun.errors import UsageError
from distrun.host.endpoints import PORTS
from distrun.host.interfaces import Interface
from distrun.runner.planning.networks import Networks
from distrun.runner.protocol.handshake import HostError
from distrun.runner.system.fan_out import call_for_each
from distrun.tools.doctor.network import verdicts
from distrun.tools.doctor.network.packet_sizes import PacketSizes
from distrun.tools.doctor.network.transfers import Traffic
from distrun.tools.doctor.probe_client import ProbeClient
from distrun.tools.doctor.report import LinkReport, Status
from distrun.tools.doctor.shell_commands import ShellCommands
from distrun.tools.doctor.verdicts import family

_MAX_ROUNDS = 31  # with more than 32 hosts, each is measured with 31 others
_MAX_ADDRESSES = 4  # tried per host
_QUICK = 10.0  # seconds for a question that is answered at once
_MEASURING = 60.0  # seconds for several measurements, which have deadlines of their own


@dataclass(frozen=True)
class ProbedHost:
    """A host whose probe waits for requests."""

    host: str
    probe: ProbeClient
    interfaces: Sequence[Interface]
    commands: ShellCommands


@dataclass(frozen=True)
class _Attempts:
    """The addresses of a host that another host tried to connect to."""

    failed: Sequence[tuple[str, str]]
    """The addresses that cannot be connected to, each with the error."""
    reached: str | None = None
    """The first address that can be connected to. None = none can."""
    links: tuple[LinkReport, LinkReport] | None = None
    """The links to that host and from it, as measured over that address."""


def rounds(count: int, most: int = _MAX_ROUNDS) -> list[list[tuple[int, int]]]:
    """Return all pairs of `count` hosts in rounds, such that no host is in two pairs of a round.

    This is the circle method of round-robin tournaments: one host stays, the others move by one place from round to
    round, and with an odd number one of them pauses. In a pair the lower number comes first. Only the first `most`
    rounds are returned.
    """
    places: list[int | None] = [*range(count), *([None] * (count % 2))]
    found = []
    for _ in range(min(most, max(0, len(places) - 1))):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def measure_all(ends: Sequence[ProbedHost], network: str) -> tuple[list[LinkReport], list[str]]:
    """Measure every pair of hosts, but no host in two pairs at once, and return the links, and notes for the user.

    The links are both directions of each pair. `network` is the value of `--network`.
    """
    found: dict[tuple[str, str], LinkReport] = {}
    schedule = rounds(len(ends))
    for pairs in schedule:
        measured = call_for_each(
            lambda pair: measure_pair(ends[pair[0]], ends[pair[1]], network, len(ends)), pairs, "doctor"
        )
        found |= {(item.source, item.target): item for items in measured for item in items}
    order = [end.host for end in ends]
    links = [found[pair] for pair in ((one, other) for one in order for other in order) if pair in found]
    notes = []
    if len(ends) > len(schedule) + 1:
        notes.append(f"with {len(ends)} hosts, each was measured with {len(schedule)} of the others only")
    return links, notes


def measure_pair(first: ProbedHost, second: ProbedHost, network: str, hosts: int) -> list[LinkReport]:
    """Measure one pair in a job of `hosts` hosts, and return both directions.

    The second host connects to the first, as ranks connect to rank 0, and the first to the second. The order of hosts
    in a job decides which one has rank 0, so both must be able to connect. If only one can, its connections serve to
    measure both directions. Ranks may use any of the addresses, so both families are tried.
    """
    try:
        both = Networks({first.host: first.interfaces, second.host: second.interfaces}, network)
    except UsageError as error:
        return [LinkReport(second.host, first.host, Status.FAILED, text=str(error), remedy="change --network")]
    pair = _Pair(both, hosts)
    there = pair.measure(second, first)
    if there.links is None:
        back = pair.measure(first, second)
        if back.links is None:
            return [pair.report(second, first, there), pair.report(first, second, back)]
        link = pair.with_closed(back.links[0], first, second, back)
        return [link, pair.report(second, first, there, is_one_way=True)]
    link, other = there.links
    link = pair.with_closed(link, second, first, there)
    back = pair.connect(first, second, _has_loss(there))
    if back.reached is None:
        return [link, pair.report(first, second, back, is_one_way=True)]
    return [link, pair.with_closed(other, first, second, replace(back, links=there.links))]


def _has_loss(attempts: _Attempts) -> bool:
    return any(link.packets_lost for link in attempts.links or ())


class _Pair:
    """The measurements between two hosts."""

    def __init__(self, networks: Networks, hosts: int) -> None:
        self._networks = networks
        self._hosts = hosts

    def measure(self, client: ProbedHost, server: ProbedHost) -> _Attempts:
        """Connect one host to the other, measure over the first address that works, and return all attempts."""
        return self._first(server, lambda address: _measure(client, server, address, self._hosts))

    def connect(self, client: ProbedHost, server: ProbedHost, has_loss: bool) -> _Attempts:
        """Find out whether one host can connect to the other, and return all attempts."""
        return self._first(server, lambda address: _connect(client, server, address, has_loss))

    def _first(self, server: ProbedHost, attempt: Callable[[str], tuple[LinkReport, LinkReport] | None]) -> _Attempts:
        """Call `attempt` with one address of the server after the other, until it raises no HostError."""
        failed: list[tuple[str, str]] = []
        for address in self._addresses(server):
            try:
                return _Attempts(failed, address, attempt(address))
            except HostError as error:
                failed.append((address, str(error)))
        return _Attempts(failed)

    def with_closed(self, link: LinkReport, client: ProbedHost, server: ProbedHost, attempts: _Attempts) -> LinkReport:
        """Return the report on a link, with a warning if the hosts cannot connect by the other address family.

        Only networks that both hosts are in count: through others they need not reach each other.
        """
        shared = [item.address for item in self._networks.of(server.host) if self._networks.is_shared(item)]
        known = dict(attempts.failed)
        closed = []
        for address in {family(address): address for address in reversed(shared)}.values():  # the best of each
            if attempts.reached is not None and family(address) == family(attempts.reached):
                continue
            try:
                if address not in known:
                    _connect(client, server, address, _has_loss(attempts))
            except HostError as error:
                known[address] = str(error)
            if address in known:
                closed.append((address, known[address]))
        judged = verdicts.with_closed(link, closed)
        if closed and not judged.command:
            judged = replace(judged, command=client.commands.there(f"ping -c 3 {closed[0][0]}"))
        return judged

    def report(self, client: ProbedHost, server: ProbedHost, why: _Attempts, is_one_way: bool = False) -> LinkReport:
        """Return the report on a host that cannot connect to another one."""
        own = self._addresses(client)
        link = verdicts.unreachable(client.host, server.host, why.failed, own, is_one_way)
        if link.target_address is None:
            return replace(link, command=client.commands.there("ip -brief address"))
        if is_one_way:
            return replace(link, command=_by_hand(client, server, link.target_address))
        return replace(link, command=client.commands.there(f"ping -c 3 {link.target_address}"))

    def _addresses(self, host: ProbedHost) -> list[str]:
        return [interface.address for interface in self._networks.of(host.host)[:_MAX_ADDRESSES]]


def _connect(client: ProbedHost, server: ProbedHost, address: str, has_loss: bool) -> None:
    """Connect one host to an address of the other. Raises HostError."""
    with _Listening(server, address) as there:
        client.probe.ask("connect", _MEASURING, **there.place, has_loss=has_loss)


def _by_hand(client: ProbedHost, server: ProbedHost, address: str) -> str:
    return f"{server.commands.there('iperf3 -s -1')} & {client.commands.there(f'iperf3 -c {address}')}"


class _Listening:
    """A context while a host listens at one of its addresses."""

    def __init__(self, server: ProbedHost, address: str) -> None:
        self._server = server
        self._address = address
        self.served: dict[str, Any] = {}
        """The server's results, after it has stopped listening."""

    def __enter__(self) -> _Listening:
        """Raises HostError."""
        key = secrets.token_hex(32)  # for this measurement only
        ports = os.environ.get(PORTS, "")
        found = self._server.probe.ask("listen", _QUICK, address=self._address, key=key, ports=ports)
        self.place: Mapping[str, Any] = {"address": self._address, "port": int(found["port"]), "key": key}
        """The arguments of requests that connect there."""
        return self

    def __exit__(self, *_: object) -> None:
        """Raises HostError."""
        self.served = self._server.probe.ask("stop_listening", _QUICK)


def _measure(client: ProbedHost, server: ProbedHost, address: str, hosts: int) -> tuple[LinkReport, LinkReport]:
    """Measure both directions over connections to one address of the server. Raises HostError."""
    found, (there, back) = _ask(client, server, "measure", address)
    steady: tuple[Traffic | None, Traffic | None] = (None, None)
    paces = verdicts.steady_pace(there), verdicts.steady_pace(back)
    if any(paces):
        _, again = _ask(client, server, "transfer", address, to_server=paces[0], from_server=paces[1])
        steady = (again[0] if paces[0] else None, again[1] if paces[1] else None)
    ours, round_trip = found["address"], found["round_trip"]
    links = []
    for source, target, measured, once_more in (
        (client, server, there, steady[0]),
        (server, client, back, steady[1]),
    ):
        ends: tuple[str, str] = (ours, address) if source is client else (address, ours)
        link = LinkReport(
            source.host,
            target.host,
            Status.OK,
            *ends,
            round_trip,
            measured.rate,
            packets_sent=measured.sent,
            packets_lost=measured.lost,
        )
        sizes = None if measured.rate is not None else _sizes(client, server, address, source is client)
        name = next((item.name for item in source.interfaces if item.address == ends[0]), "")
        judged = verdicts.link(link, hosts, once_more, sizes, name)
        links.append(replace(judged, command=_command(judged, source, target, sizes)))
    return links[0], links[1]


def _ask(
    client: ProbedHost, server: ProbedHost, what: str, address: str, **arguments: int
) -> tuple[dict[str, Any], tuple[Traffic, Traffic]]:
    """Transfer data over connections to the server. Return the client's answer, and the traffic there and back."""
    with _Listening(server, address) as there:
        found = client.probe.ask(what, _MEASURING, **there.place, **arguments)
    served = there.served
    to_server = Traffic(served["rate"], found["sent"], found["lost"])
    return found, (to_server, Traffic(found["rate"], served["sent"], served["lost"]))


def _sizes(client: ProbedHost, server: ProbedHost, address: str, is_sent: bool) -> PacketSizes | None:
    """Return which packets pass in one direction, or None if that is not certain."""
    try:
        with _Listening(server, address) as there:
            found = client.probe.ask("largest_packet", _MEASURING, **there.place, is_sent=is_sent)
    except HostError:
        return None
    return PacketSizes(**found) if found else None


def _command(link: LinkReport, source: ProbedHost, target: ProbedHost, sizes: PacketSizes | None) -> str:
    """Return the command that shows the problem of a link, if it has one."""
    assert link.target_address is not None
    if link.status is Status.OK:
        return ""
    if link.bandwidth is not None:
        return _by_hand(source, target, link.target_address)
    if link.largest_packet is None or sizes is None:
        return source.commands.there(f"ping -c 20 {link.target_address}")
    headers = 48 if ":" in link.target_address else 28  # of IP and ICMP
    return source.commands.there(f"ping -c 3 -M do -s {sizes.full - headers} {link.target_address}")
