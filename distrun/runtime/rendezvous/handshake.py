"""A call: what two ranks say to each other over a new TCP connection before it belongs to either of them.

    host   "distrun1", length, greeting      the greeting is public and mostly empty; munge puts the sealed key into it
    both   the proofs of `authentication`
    guest  length, introduction              a JSON object: who calls and what for
    host   "!"                               so the guest knows that it was not hung up on in between, and calls again if it was

The proofs are bound to the address that the guest called and the host was called at. So a program that somebody else runs at
an address the guest tries in vain cannot pass the conversation on to the real host. It also means that no address translation
may stand between the two; the addresses that ranks tell each other are their own, so there is none.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from distrun.errors import BootstrapError
from distrun.host.interfaces import without_zone
from distrun.runtime.rendezvous.authentication import Script, StrangerError, client_side, server_side

HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a caller, or an attempt to call, has in all."""

KeySource = bytes | Callable[[bytes], bytes]
"""The key, or what finds it in a greeting. The greeting may come from anybody."""

Introduction = Mapping[str, Any] | Callable[[socket.socket], Mapping[str, Any]]
"""What the caller says of itself, or what makes it up once the connection, and so our address, is known."""

MAGIC = b"distrun1"
HEARD = b"!"
LENGTH = struct.Struct("<I")
LONGEST_GREETING = 1 << 14
LONGEST_INTRODUCTION = 1 << 16


def tune(connection: socket.socket, timeout: float = 15.0) -> None:
    """Set what every connection between ranks has: small messages leave at once, and a dead host is noticed in 15 s.

    Args:
        timeout: seconds after which data that the other host does not take ends the connection (TCP_USER_TIMEOUT), 0 for
            the system's quarter of an hour. Beware: Linux counts a host that is alive, and merely full because its process
            does not read (it computes, it is stopped), as one that does not take the data.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout * 1000))


def server_handshake(greeting: bytes, key: bytes, context: bytes) -> Script[dict[str, Any]]:
    """The host's side of a call."""
    yield greeting
    yield from server_side(key, context)
    (size,) = LENGTH.unpack((yield LENGTH.size))
    if size > LONGEST_INTRODUCTION:
        raise BootstrapError(f"an introduction of {size} bytes is longer than {LONGEST_INTRODUCTION}")
    try:
        introduction = json.loads((yield size))
    except (ValueError, RecursionError):
        introduction = None
    if not isinstance(introduction, dict):
        raise BootstrapError("an introduction is not a JSON object")
    yield HEARD
    return introduction


def client_handshake(key: KeySource, context: bytes) -> Script[bytes]:
    """The guest's side of a call, up to the introduction; the key that both know."""
    head = yield len(MAGIC) + LENGTH.size
    (size,) = LENGTH.unpack(head[len(MAGIC) :])
    if not head.startswith(MAGIC) or size > LONGEST_GREETING:
        raise StrangerError("another program answers there")
    greeting = yield size
    secret = key if isinstance(key, bytes) else key(greeting)
    yield from client_side(secret, context)
    return secret


def context(address: tuple[Any, ...]) -> bytes:
    """What the proofs are bound to: a call to this address of the host. Both sides write it alike."""
    host = ipaddress.ip_address(without_zone(address[0]))
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return f"call {host} {address[1]}".encode()
