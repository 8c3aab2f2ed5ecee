"""Authentication: two processes prove to each other that they know the job key, without showing it.

The server sends a random challenge. The client answers with its proof and its own challenge. The server verifies the
proof and answers with its own. A proof is an HMAC-SHA256 over the side, both challenges and the *context*: the purpose
of the connection and the address where it was made. So a proof cannot be reflected to its maker, replayed, or relayed
from one connection to another. Everything before a verified proof has a fixed size, and no more than this is read from
an unknown process.

The two sides are generators that yield bytes to send, or a number of bytes to receive, and do not use sockets.
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
"""One side of a handshake: yields bytes to send, or the number of bytes to receive, and returns the result."""


class AuthenticationError(BootstrapError):
    """The other side does not know the job key."""


def server_side(key: bytes, context: bytes) -> Handshake[bytes]:
    """Run the server's side. Return the transcript, both challenges and the context, which is unique to the connection.

    Raises:
        AuthenticationError: the client does not know the key. It has received nothing except a challenge.
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
    """Run the client's side. Return the same transcript as the server's side.

    Raises:
        AuthenticationError: the server does not know the key, or rejects this client's key: it closed the connection
            after the client's proof.
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
    """Run `handshake` on a blocking socket, whose timeout applies to each step. Return its result.

    `await_readable` returns when there is something to read, or raises its own error.

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
    """Receive exactly `size` bytes. On a socket that preserves message boundaries, they must be one message."""
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
    """Runs a handshake on a non-blocking socket, a step at a time."""

    def __init__(self, connection: socket.socket, handshake: Handshake[T]) -> None:
        self._connection = connection
        self._handshake = handshake
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._wanted = -1
        """The number of bytes that the handshake waits for. -1 before it has begun."""
        self._over = False
        self.result: T
        """The result of the handshake. Set when `advance` has returned True."""

    @property
    def wants_to_send(self) -> bool:
        """Whether it continues when the socket is writable, not when it is readable."""
        return bool(self._outgoing)

    def advance(self) -> bool:
        """Continue as far as possible without waiting. Return whether the handshake has ended.

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
            # The handshake may know the meaning of this, and raise another error.
            self._handshake.throw(error)
            raise

    def close(self) -> None:
        """Stop the handshake. The socket is not closed."""
        self._handshake.close()

    def _step(self, received: bytes | None) -> None:
        """Continue the handshake until it wants to receive. Bytes that it sends until then are sent together."""
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
        """Receive the bytes that the handshake wants, and never more. Return whether they are complete."""
        try:
            while len(self._incoming) < self._wanted:
                part = self._connection.recv(self._wanted - len(self._incoming))
                if not part:
                    raise ConnectionResetError("it closed the connection")
                self._incoming += part
        except BlockingIOError:
            return False
        return True
