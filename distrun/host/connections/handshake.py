"""The handshake: the messages of two processes on a new TCP connection before they use it.

    server   "distrun1", length, greeting    the greeting is public and mostly empty. With munge, it has the sealed key.
                                             "distrunE" if connections are encrypted
    both     the proofs of `authentication`
             TLS                             if connections are encrypted, for everything after this: see `tls`
    client   length, introduction            a JSON object: the client's identity, and the purpose of the connection
    server   "!"                             the acknowledgement: without it, the client connects again

The proofs are bound to the server's address that the client connects with. So if another user's program listens at an
address that the client tries, it cannot relay the handshake to the real server. As a consequence, there must be no
address translation between the two sides. There is none, since ranks exchange the addresses of their own interfaces.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distrun.errors import BootstrapError
from distrun.host.connections.authentication import AuthenticationError, Handshake, client_side, server_side
from distrun.host.interfaces import without_zone

if TYPE_CHECKING:
    from distrun.host.connections.tls import Session

HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a handshake may take in all."""

KeySource = bytes | Callable[[bytes], bytes]
"""The key, or a function that finds it in a greeting. The greeting is not authenticated."""

Introduction = Mapping[str, Any] | Callable[[socket.socket], Mapping[str, Any]]
"""The client's facts about itself, or a function that returns them, given the connection with its local address."""

PLAIN, ENCRYPTED = b"distrun1", b"distrunE"
"""The first bytes of a greeting, which determine whether TLS follows the proofs. An attacker cannot exchange one for
the other: it is part of the proofs' context, and each side requires the one that it is configured for."""
ACKNOWLEDGEMENT = b"!"
LENGTH = struct.Struct("<I")
MAX_GREETING = 1 << 14
MAX_INTRODUCTION = 1 << 16


@dataclass(frozen=True)
class Accepted:
    """The server's result of a handshake."""

    introduction: dict[str, Any]
    session: Session | None
    """The TLS session of the connection. None if it is not encrypted."""


def server_handshake(greeting: bytes, key: bytes, context: bytes, is_encrypted: bool = False) -> Handshake[Accepted]:
    """Run the server's side, and return the client's introduction. `greeting` is the result of `begin_greeting`."""
    yield greeting
    transcript = yield from server_side(key, _proved(context, is_encrypted))
    if not is_encrypted:
        return Accepted((yield from _take_introduction()), None)
    session = _session(key, transcript, is_server=True)
    yield from session.handshake()
    return Accepted((yield from session.through(_take_introduction())), session)


def begin_greeting(greeting: bytes, is_encrypted: bool) -> bytes:
    """Return `greeting` with its first bytes and its length."""
    return (ENCRYPTED if is_encrypted else PLAIN) + LENGTH.pack(len(greeting)) + greeting


def _take_introduction() -> Handshake[dict[str, Any]]:
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


def client_handshake(
    key: KeySource, context: bytes, is_encrypted: bool = False
) -> Handshake[tuple[bytes, Session | None]]:
    """Run the client's side up to the introduction. Return the key that both sides know, and the TLS session, if
    any."""
    head = yield len(PLAIN) + LENGTH.size
    (size,) = LENGTH.unpack(head[len(PLAIN) :])
    wanted, other = (ENCRYPTED, PLAIN) if is_encrypted else (PLAIN, ENCRYPTED)
    if head.startswith(other):
        does, does_not = ("does not encrypt", "does") if is_encrypted else ("encrypts", "does not")
        raise AuthenticationError(f"it {does}, and this process {does_not}: give all DISTRUN_ENCRYPT=1, or none")
    if not head.startswith(wanted) or size > MAX_GREETING:
        raise AuthenticationError("another program answers there")
    greeting = yield size
    secret = key if isinstance(key, bytes) else key(greeting)
    transcript = yield from client_side(secret, _proved(context, is_encrypted))
    if not is_encrypted:
        return secret, None
    session = _session(secret, transcript, is_server=False)
    yield from session.handshake()
    return secret, session


def _proved(context: bytes, is_encrypted: bool) -> bytes:
    return context + b" encrypted" if is_encrypted else context


def _session(key: bytes, transcript: bytes, is_server: bool) -> Session:
    try:
        from distrun.host.connections.tls import Session
    except ImportError as error:
        raise BootstrapError(
            f"connections cannot be encrypted: {error}; install the package cryptography for this Python, or start "
            "the job without --encrypt"
        ) from None
    return Session(key, transcript, is_server)


def encrypted(connection: socket.socket, session: Session | None) -> socket.socket:
    """Return `connection` encrypted with `session`, or itself if there is no session."""
    if session is None:
        return connection
    from distrun.host.connections.tls import TlsSocket

    return TlsSocket(connection, session)


def context(address: tuple[Any, ...]) -> bytes:
    """Return the context of the proofs for the server's `address`. Both sides compute the same bytes."""
    host = ipaddress.ip_address(without_zone(address[0]))
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped is not None:
        host = host.ipv4_mapped
    return f"connect {host} {address[1]}".encode()
