"""The handshake: what two processes say to each other over a new TCP connection before they use it.

    server   "distrun1", length, greeting    the greeting is public and mostly empty; munge puts the sealed key into it
    both     the proofs of `authentication`
    client   length, introduction            a JSON object: who the client is, and what the connection is for
    server   "!"                             the acknowledgement: without it the client connects again

The proofs are bound to the address that the client connects with. So a program of another user at an address
that the client tries in vain cannot pass the handshake on to the real server. It also means that no address translation
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
from distrun.host.connections.authentication import AuthenticationError, Handshake, client_side, server_side
from distrun.host.interfaces import without_zone

HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a handshake may take in all."""

KeySource = bytes | Callable[[bytes], bytes]
"""The key, or what finds it in a greeting. The greeting may come from anybody."""

Introduction = Mapping[str, Any] | Callable[[socket.socket], Mapping[str, Any]]
"""The client's facts about itself, or what makes them once the connection, and so our address, is known."""

MAGIC = b"distrun1"
ACKNOWLEDGEMENT = b"!"
LENGTH = struct.Struct("<I")
MAX_GREETING = 1 << 14
MAX_INTRODUCTION = 1 << 16


def server_handshake(greeting: bytes, key: bytes, context: bytes) -> Handshake[dict[str, Any]]:
    """Run the server's side, after which it has the introduction."""
    yield greeting
    yield from server_side(key, context)
    (size,) = LENGTH.unpack((yield LENGTH.size))
    if size > MAX_INTRODUCTION:
        raise BootstrapError(f"an introduction of {size} bytes is longer than {MAX_INTRODUCTION}")
    try:
        introduction = json.loads((yield size))
    except (ValueError, RecursionError):
        introduction = None
    if not isinstance(introduction, dict):
        raise BootstrapError("an introduction is not a JSON object")
    yield ACKNOWLEDGEMENT
    return introduction


def client_handshake(key: KeySource, context: bytes) -> Handshake[bytes]:
    """Run the client's side up to the introduction; returns the key that both know."""
    head = yield len(MAGIC) + LENGTH.size
    (size,) = LENGTH.unpack(head[len(MAGIC) :])
    if not head.startswith(MAGIC) or size > MAX_GREETING:
        raise AuthenticationError("another program answers there")
    greeting = yield size
    secret = key if isinstance(key, bytes) else key(greeting)
    yield from client_side(secret, context)
    return secret


def context(address: tuple[Any, ...]) -> bytes:
    """Return what the proofs are bound to: a connection with this address of the server. Both sides write it alike."""
    host = ipaddress.ip_address(without_zone(address[0]))
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return f"connect {host} {address[1]}".encode()
