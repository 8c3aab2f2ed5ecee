"""Endpoints: an address and a port as one text, and TCP ports of this machine that are free."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LAST_PORT = 65535


def format_endpoint(address: str, port: int) -> str:
    """Return `10.0.0.1:4711`, or `[fd00::1]:4711` for IPv6; the name of a host may stand for an address."""
    return f"{bracketed(address)}:{port}"


def bracketed(address: str) -> str:
    """Return an address as it is written before a colon: IPv6 in brackets, everything else as it is."""
    return f"[{address}]" if ":" in address else address


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return the address and the port of `10.0.0.1:4711` or `[fd00::1]:4711`, the inverse of `format_endpoint`.

    Raises:
        ValueError: it is something else, such as an IPv6 address without brackets, or a port outside of 1 to 65535.
    """
    address, _, port = text.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:  # IPv6 without brackets: where does the port begin?
        address = ""
    if not address or not (port.isascii() and port.isdecimal() and 0 < int(port) <= LAST_PORT):
        raise ValueError(f"{text!r} is not an address and a port from 1 to {LAST_PORT}")
    return address, int(port)


def free_port() -> int:
    """Return a TCP port that nobody listens on at this moment."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different TCP ports that nobody listens on at this moment."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [probe.getsockname()[1] for probe in probes]


def reserve_port() -> socket.socket:
    """Return a socket that keeps a TCP port free, on all addresses, for another process of the same user.

    A process that sets SO_REUSEPORT may bind the port too, and since the reserving socket does not listen, all
    connections are made to that process.
    """
    for family, wildcard in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            reservation = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # a kernel without IPv6
            problem = error
            continue
        try:
            if family == socket.AF_INET6:
                reservation.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reservation.bind((wildcard, 0))
            return reservation
        except OSError as error:
            reservation.close()
            problem = error
    raise problem
