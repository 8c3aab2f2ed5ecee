"""Endpoints: an address and a port as one text, and free TCP ports of this machine."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from distrun.errors import UsageError
from distrun.host.numerals import whole_number

LAST_PORT = 65535
PORTS = "DISTRUN_PORTS"
"""The variable with the ports that distrun may listen on, `5000-5099`. Processes that this one starts inherit it."""

T = TypeVar("T")


def format_endpoint(address: str, port: int) -> str:
    """Return `10.0.0.1:4711`, or `[fd00::1]:4711` for IPv6. `address` may be a host name."""
    return f"{bracketed(address)}:{port}"


def bracketed(address: str) -> str:
    """Return `address` as it is written before a colon: IPv6 in brackets, everything else unchanged."""
    return f"[{address}]" if ":" in address else address


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return the address and the port of `10.0.0.1:4711` or `[fd00::1]:4711`, the inverse of `format_endpoint`.

    Raises:
        ValueError: the text has another form, such as an IPv6 address without brackets or a port outside of 1 to 65535.
    """
    address, _, port = text.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif ":" in address:  # IPv6 without brackets: where does the port begin?
        address = ""
    number = whole_number(port, most=LAST_PORT)
    if not address or number is None:
        raise ValueError(f"{text!r} is not an address and a port from 1 to {LAST_PORT}")
    return address, number


def parse_ports(text: str, source: str = "--ports ") -> range:
    """Return the ports that a value of `--ports` allows, `5000-5099`.

    Args:
        text: the value.
        source: the option or the variable with this value, for the error.

    Raises:
        UsageError: the text is not a range of ports.
    """
    first, _, last = text.partition("-")
    least, most = (whole_number(number.strip(), most=LAST_PORT) for number in (first, last or first))
    if least is None or most is None or least > most:
        raise UsageError(f"{source}{text!r} is no range of ports: allowed are FIRST-LAST from 1 to {LAST_PORT}")
    return range(least, most + 1)


def at_free_port(attempt: Callable[[int], T], from_top: bool = False) -> T:
    """Call `attempt` with ports until one is free: any port, or those that DISTRUN_PORTS allows.

    Args:
        attempt: binds a port, and may listen there. 0 lets the system choose. It raises OSError.
        from_top: whether to begin with the upper half of the allowed ports. It is used for ports that another process
            binds later, so that processes that listen at once, in the lower half, do not take them before.

    Returns:
        The result of the first attempt that succeeds.

    Raises:
        UsageError: no port is free.
        OSError: an attempt failed for another reason.
    """
    text = os.environ.get(PORTS)
    if not text:
        return attempt(0)
    ports = parse_ports(text, f"{PORTS}=")
    halves = [list(ports[: len(ports) // 2]), list(ports[len(ports) // 2 :])]
    for half in reversed(halves) if from_top else halves:
        random.shuffle(half)  # other processes may choose at the same moment
        for port in half:
            try:
                return attempt(port)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
    raise UsageError(
        f"no port of {text} is free on {socket.gethostname()}: allow more with --ports (or {PORTS}), at least two per "
        "host and two per rank"
    )


def bind_free(unbound: socket.socket, address: str, from_top: bool = False) -> None:
    """Bind the socket `unbound` to a free port of `address`. See `at_free_port`."""
    at_free_port(lambda port: unbound.bind((address, port)), from_top)


def free_port() -> int:
    """Return a TCP port that is free at this moment. Raises UsageError if no allowed port is free."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return `count` different TCP ports that are free at this moment.

    Raises:
        UsageError: fewer of the ports that DISTRUN_PORTS allows are free.
    """
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            bind_free(probe, "", from_top=True)
        return [probe.getsockname()[1] for probe in probes]


def reserve_port() -> socket.socket:
    """Return a socket that reserves a TCP port, on all addresses, for another process of the same user.

    A process that sets SO_REUSEPORT may bind the port, too. Since the reserving socket does not listen, all connections
    go to that process.

    Raises:
        UsageError: none of the ports that DISTRUN_PORTS allows is free.
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
            bind_free(reservation, wildcard)
            # Set after `bind`, so that no other reservation of this user gets the same port.
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            return reservation
        except OSError as error:
            reservation.close()
            problem = error
        except BaseException:
            reservation.close()
            raise
    raise problem
