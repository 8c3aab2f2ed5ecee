"""Verdicts on the network between two hosts: thresholds, and sentences with remedies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distrun.tools.doctor.network.packet_sizes import PacketSizes
from distrun.tools.doctor.network.transfers import Traffic
from distrun.tools.doctor.report import LinkReport, Status
from distrun.tools.doctor.verdicts import family, gigabits, seconds

SLOW_LINK = 1e9 / 8  # bytes per second: up to this a link is too slow for training
_ALLREDUCE = 100_000_000  # bytes of the example that shows what a slow link means
_LOSS = 0.005  # share of lost packets: from this on it is a fault of the network
_FEW = 3  # lost packets: fewer are too few for a rate
_PACE, _FASTEST, _SLOWEST = 4, 100e6 / 8, 8e6 / 8  # a steady pace: a quarter of the rate, within bytes per second


def steady_pace(transfer: Traffic) -> int:
    """Return the bytes per second for a second transfer, to see why packets were lost, or 0 if hardly any were.

    TCP sends ever faster until a queue on the path is full, so any slow link loses some packets. At a pace that it can
    carry, a sound link loses none.
    """
    if transfer.lost < _FEW or transfer.loss < _LOSS / 2:
        return 0
    return int(min(_FASTEST, max(_SLOWEST, (transfer.rate or 0.0) / _PACE)))


def link(
    found: LinkReport,
    hosts: int,
    steady: Traffic | None = None,
    sizes: PacketSizes | None = None,
    interface: str = "",
) -> LinkReport:
    """Judge a measured link in a job of so many hosts, and return it with a status, a text and a remedy.

    Args:
        steady: the transfer at a steady pace, if one was made.
        sizes: the packets that pass, if nothing arrived in a transfer and they are certain.
        interface: the name of the source's interface.
    """
    if found.bandwidth is None:
        return _nothing_arrives(found, sizes, interface)
    text = f"{gigabits(found.bandwidth)} Gbit/s"
    if found.round_trip is not None:
        text += f", round trip {seconds(found.round_trip)}"
    if steady is not None and steady.lost >= _FEW and steady.loss >= _LOSS:
        return replace(
            found,
            status=Status.WARNING,
            packets_sent=steady.sent,
            packets_lost=steady.lost,
            text=f"{text}: packets are lost on the way, {_share(steady)}",
            remedy=_FIND_LOSS,
        )
    if found.bandwidth > SLOW_LINK:
        return replace(found, status=Status.OK, text=text)
    allreduce = 2 * (hosts - 1) / hosts * _ALLREDUCE / found.bandwidth
    return replace(
        found,
        status=Status.WARNING,
        text=f"{text}: too little for training, where an allreduce of 100 MB would take {allreduce:.3g} s at best",
        remedy="use a faster network; where a host has several, choose one with --network; --wire-dtype bfloat16 sends "
        "half as much, and int8 a quarter",
    )


_FIND_LOSS = (
    "find where they are lost: 'ip -s link' and 'ethtool -S' count the errors and drops of each interface, switches "
    "those of their ports; cables, transceivers and overloaded ports are the usual causes; where a host has several "
    "networks, choose another with --network"
)


def _share(transfer: Traffic) -> str:
    return f"{transfer.loss * 100:.2g} % of them had to be sent again ({transfer.lost} of {transfer.sent})"


def _nothing_arrives(found: LinkReport, sizes: PacketSizes | None, interface: str) -> LinkReport:
    place = f"{found.target_address} can be connected to, but no data arrives from {found.source_address}"
    if sizes is None or sizes.passing == sizes.full:
        text = f"{place}: most packets are lost on the way"
        return replace(found, status=Status.FAILED, text=text, remedy=_FIND_LOSS)
    if not sizes.passing:
        return replace(found, status=Status.FAILED, text=f"{place}: packets are lost on the way", remedy=_FIND_LOSS)
    device = interface or "INTERFACE"
    return replace(
        found,
        status=Status.FAILED,
        largest_packet=sizes.passing,
        text=f"{place}: large packets are lost on the way, those of more than {sizes.passing} bytes of up to "
        f"{sizes.full} (an MTU black hole)",
        remedy=f"give the network between them the MTU of its ends, or {found.source} that of the network, with 'ip "
        f"link set dev {device} mtu {sizes.passing}' there; or choose other interfaces with --network",
    )


def with_closed(found: LinkReport, closed: Sequence[tuple[str, str]]) -> LinkReport:
    """Return the report on a link, with a warning about addresses of the target that the source cannot connect to.

    The link was measured over another address. `closed` has (address of the target, error) of each.
    """
    if not closed:
        return found
    places = ", nor at ".join(f"{address} ({family(address)}: {trouble})" for address, trouble in closed)
    remedy = (
        f"open the firewall of {found.target} for {' and '.join(family(address) for address, _ in closed)} too, for "
        "all TCP ports; or choose a network that works with --network"
    )
    return replace(
        found,
        status=Status.WARNING if found.status is Status.OK else found.status,
        text=f"{found.text}; but {found.source} cannot connect to {found.target} at {places}",
        remedy=f"{remedy}; {found.remedy}" if found.remedy else remedy,
    )


def unreachable(
    source: str, target: str, tried: Sequence[tuple[str, str]], own: Sequence[str], is_one_way: bool = False
) -> LinkReport:
    """Return the report on a source that could not connect to a target.

    Args:
        tried: (address of the target, error) of each attempt, in order.
        own: the addresses of the source.
        is_one_way: whether the target can connect to the source.
    """
    place = f"{source} ({' or '.join(own) or 'without an address'})"
    if not tried:
        reason = f"{place} cannot connect to {target}, which has no address that other hosts may know"
    else:
        reason = f"{place} cannot connect to {target} at " + ", nor at ".join(
            f"{address} ({family(address)}: {trouble})" for address, trouble in tried
        )
    if is_one_way:
        reason += f", though {target} can connect to {source}: new connections are dropped in this direction only"
    return LinkReport(
        source,
        target,
        Status.FAILED,
        own[0] if len(own) == 1 else None,
        tried[0][0] if tried else None,
        text=reason,
        remedy="open the firewall between them, for all TCP ports; or choose interfaces that reach each other with "
        "--network, by name or subnet, such as --network eth1 or --network 10.0.0.0/8",
    )
