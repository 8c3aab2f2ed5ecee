"""Authentication: two processes prove to each other that they know the job key, without showing it.

The host sends a random challenge. The guest answers with its proof and a challenge of its own; the host verifies, and answers
with its proof. A proof is an HMAC-SHA256 over the side, both challenges and the *context*: what the conversation is for and
where it takes place. So no proof can be sent back to its maker, used a second time, or taken from one conversation to another.
Everything before a verified proof has a fixed size; nobody reads more than that from somebody unknown.

The two sides are *scripts*: generators that yield bytes to send, or a number of bytes to receive, and know nothing of sockets.
`converse` plays a script on a blocking socket; a `Conversation` plays it on a socket that does not block, a step at a time.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Generator
from typing import Generic, TypeVar

from distrun.errors import BootstrapError

SIZE = 32
"""Bytes of a challenge, and of a proof."""

T = TypeVar("T")
Script = Generator[bytes | int, bytes, T]
"""One side of a conversation: yields what to send, or how many bytes it wants; returns what came of it."""


class StrangerError(BootstrapError):
    """The other side does not know the job key."""


def server_side(key: bytes, context: bytes) -> Script[None]:
    """The side that was called.

    Raises:
        StrangerError: the guest does not know the key; it was told nothing but a challenge.
    """
    challenge = secrets.token_bytes(SIZE)
    yield challenge
    answer = yield 2 * SIZE
    proof, counter_challenge = answer[:SIZE], answer[SIZE:]
    transcript = challenge + counter_challenge + context
    if not hmac.compare_digest(proof, _mac(key, b"guest", transcript)):
        raise StrangerError("a process that does not know the job key tried to join")
    yield _mac(key, b"host", transcript)


def client_side(key: bytes, context: bytes) -> Script[None]:
    """The side that calls.

    Raises:
        StrangerError: the host does not know the key, or finds that we do not: it hung up on our proof.
    """
    challenge = yield SIZE
    counter_challenge = secrets.token_bytes(SIZE)
    transcript = challenge + counter_challenge + context
    yield _mac(key, b"guest", transcript) + counter_challenge
    try:
        proof = yield SIZE
    except ConnectionError:
        raise StrangerError("it does not accept the job key") from None
    if not hmac.compare_digest(proof, _mac(key, b"host", transcript)):
        raise StrangerError("it does not know the job key")


def _mac(key: bytes, side: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, b"distrun " + side + b"\0" + transcript, "sha256")


def converse(connection: socket.socket, script: Script[T]) -> T:
    """Play `script` on a blocking socket, whose timeout applies to each step.

    Raises:
        ConnectionError: the other side hung up.
        OSError: the connection failed, or timed out.
    """
    try:
        step = next(script)
        while True:
            try:
                if isinstance(step, bytes):
                    connection.sendall(step)
                    received = b""
                else:
                    received = _receive(connection, step)
            except ConnectionError as error:
                step = script.throw(error)
            else:
                step = script.send(received)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        script.close()


def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes. Where the socket keeps messages apart they have to be one message."""
    parts: list[bytes] = []
    while size:
        part = connection.recv(size)
        if not part or (len(part) < size and connection.type != socket.SOCK_STREAM):
            raise ConnectionError("it closed the connection" if not part else "it sent too little")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Conversation(Generic[T]):
    """A script in play on a socket that does not block."""

    def __init__(self, connection: socket.socket, script: Script[T]) -> None:
        self._connection = connection
        self._script = script
        self._outgoing = bytearray()
        self._incoming = bytearray()
        self._wanted = -1
        """Bytes that the script waits for; -1 when it was not asked yet."""
        self._over = False
        self.result: T
        """What the script returned; there when `advance` has said True."""

    @property
    def wants_to_send(self) -> bool:
        """Whether it goes on when the socket can take bytes; otherwise, when some have come."""
        return bool(self._outgoing)

    def advance(self) -> bool:
        """Go on as far as possible without waiting; whether the script has ended.

        Raises:
            OSError: the connection failed or was closed by the other side.
            BootstrapError: the script gave up.
        """
        try:
            if self._wanted < 0 and not self._over:
                self._play(None)
            while True:
                if self._outgoing and not self._flush():
                    return False
                if self._over:
                    return True
                if not self._fill():
                    return False
                received = bytes(self._incoming)
                self._incoming.clear()
                self._play(received)
        except ConnectionError as error:
            if self._over:
                raise
            self._script.throw(error)  # a script may know better what it means
            raise

    def close(self) -> None:
        """End the script; the socket stays as it is."""
        self._script.close()

    def _play(self, received: bytes | None) -> None:
        """Let the script go on until it wants to receive: what it sends meanwhile travels together."""
        try:
            step = self._script.send(received)  # type: ignore[arg-type]  # None starts a generator
            while isinstance(step, bytes):
                self._outgoing += step
                step = self._script.send(b"")
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
        """Receive up to what the script wants and never more; whether that is complete."""
        try:
            while len(self._incoming) < self._wanted:
                part = self._connection.recv(self._wanted - len(self._incoming))
                if not part:
                    raise ConnectionResetError("it closed the connection")
                self._incoming += part
        except BlockingIOError:
            return False
        return True
