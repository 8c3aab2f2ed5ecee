"""Authentication: two processes prove to each other that they know the job key, without showing it.

The server sends a random challenge. The client answers with its proof and a challenge of its own; the server verifies
the proof and answers with its own. A proof is an HMAC-SHA256 over the side, both challenges and the *context*: what the
connection is for and where it was made. So no proof can be sent back to its maker, used a second time, or taken from
one connection to another. Everything before a verified proof has a fixed size, and no more than that is read from an
unknown process.

The two sides are generators that yield bytes to send, or a number of bytes to receive, and know nothing of sockets.
`run_handshake` runs one on a blocking socket, a `NonblockingHandshake` on a socket that does not block, a step at a
time.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

from distrun.errors import BootstrapError

SIZE = 32
"""Bytes of a challenge, and of a proof."""

T = TypeVar("T")
Handshake = Generator[bytes | int, bytes, T]
"""One side of a handshake: yields what to send, or how many bytes it wants; returns the result."""


class AuthenticationError(BootstrapError):
    """The other side does not know the job key."""


def server_side(key: bytes, context: bytes) -> Handshake[bytes]:
    """Run the server's side; returns the challenges and the context, which no other connection has.

    Raises:
        AuthenticationError: the client does not know the key; it was told nothing but a challenge.
    """
    challenge = secrets.token_bytes(SIZE)
    yield challenge
    answer = yield 2 * SIZE
    proof, counter_challenge = answer[:SIZE], answer[SIZE:]
    transcript = challenge + counter_challenge + context
    if not hmac.compare_digest(proof, _mac(key, b"client", transcript)):
        raise AuthenticationError("a process that does not know the job key tried to join")
    yield _mac(key, b"server", transcript)
    return transcript


def client_side(key: bytes, context: bytes) -> Handshake[bytes]:
    """Run the client's side; returns what the server's does.

    Raises:
        AuthenticationError: the server does not know the key, or finds that we do not: it closed the connection after
        our proof.
    """
    challenge = yield SIZE
    counter_challenge = secrets.token_bytes(SIZE)
    transcript = challenge + counter_challenge + context
    yield _mac(key, b"client", transcript) + counter_challenge
    try:
        proof = yield SIZE
    except ConnectionError:
        raise AuthenticationError("it does not accept the job key") from None
    if not hmac.compare_digest(proof, _mac(key, b"server", transcript)):
        raise AuthenticationError("it does not know the job key")
    return transcript


def _mac(key: bytes, side: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, b"distrun " + side + b"\0" + transcript, "sha256")


def run_handshake(
    connection: socket.socket,
    handshake: Handshake[T],
    await_readable: Callable[[socket.socket], None] = lambda connection: None,
) -> T:
    """Run `handshake` on a blocking socket, whose timeout applies to each step; returns its result.

    `await_readable` returns when there is something to read, or raises an error of its own.

    Raises:
        ConnectionError: the other side closed the connection.
        OSError: the connection failed, or timed out.
    """
    try:
        step = next(handshake)
        while True:
            try:
                if isinstance(step, bytes):
                    connection.sendall(step)
                    received = b""
                else:
                    received = _receive(connection, step, await_readable)
            except ConnectionError as error:
                step = handshake.throw(error)
            else:
                step = handshake.send(received)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        handshake.close()


def _receive(connection: socket.socket, size: int, await_readable: Callable[[socket.socket], None]) -> bytes:
    """Receive exactly `size` bytes; on a socket that keeps messages apart, in one message."""
    parts: list[bytes] = []
    while size:
        await_readable(connection)
        part = connection.recv(size)
        if not part or (len(part) < size and connection.type != socket.SOCK_STREAM):
            raise ConnectionError("it closed the connection" if not part else "it sent too little")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class NonblockingHandshake(Generic[T]):
    """A handshake that is under way on a socket that does not block."""

    def __init__(self, connection: socket.socket, handshake: Handshake[T]) -> None:
        self._connection = connection
        self._handshake = handshake
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._wanted = -1
        """Bytes that the handshake waits for; -1 before it has begun."""
        self._over = False
        self.result: T
        """The result of the handshake; set when `advance` has returned True."""

    @property
    def wants_to_send(self) -> bool:
        """Whether it goes on when the socket can take bytes, rather than when some have come."""
        return bool(self._outgoing)

    def advance(self) -> bool:
        """Go on as far as possible without waiting; returns whether the handshake has ended.

        Raises:
            OSError: the connection failed or was closed by the other side.
            BootstrapError: the handshake failed.
        """
        try:
            if self._wanted < 0 and not self._over:
                self._step(None)
            while True:
                if self._outgoing and not self._flush():
                    return False
                if self._over:
                    return True
                if not self._fill():
                    return False
                received = bytes(self._incoming)
                self._incoming.clear()
                self._step(received)
        except ConnectionError as error:
            if self._over:
                raise
            # The handshake may know better what that means, and raise something else.
            self._handshake.throw(error)
            raise

    def close(self) -> None:
        """Give up; the socket stays as it is."""
        self._handshake.close()

    def _step(self, received: bytes | None) -> None:
        """Let the handshake go on until it wants to receive: what it sends meanwhile travels together."""
        try:
            step = self._handshake.send(received)  # type: ignore[arg-type]  # None starts a generator
            while isinstance(step, bytes):
                self._outgoing += step
                step = self._handshake.send(b"")
            self._wanted = step
        except StopIteration as end:
            self.result = end.value
            self._over = True

    def _flush(self) -> bool:
        try:
            while self._outgoing:
                del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            return False
        return True

    def _fill(self) -> bool:
        """Receive up to what the handshake wants and never more; returns whether that is complete."""
        try:
            while len(self._incoming) < self._wanted:
                part = self._connection.recv(self._wanted - len(self._incoming))
                if not part:
                    raise ConnectionResetError("it closed the connection")
                self._incoming += part
        except BlockingIOError:
            return False
        return True
