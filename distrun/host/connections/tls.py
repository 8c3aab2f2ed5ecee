"""TLS between processes of a job: certificates for one connection each, and a socket that uses TLS.

When TLS begins, both sides have proved in the `handshake` that they know the job key. From the key and the transcript
of the handshake, they derive two Ed25519 keys, one for each side. Each side makes both certificates. So each side shows
its own certificate, and accepts exactly one, the other side's, which cannot be made without the job key. TLS 1.3
negotiates new session keys, so a recorded connection stays secret even if the job key becomes known later.

OpenSSL encrypts, through Python's `ssl`, and `cryptography` makes the certificates. This module is only imported if
encryption is asked for.

A certificate per job would be simpler, but would not bind a session to its connection. Kernel TLS would save a copy,
but few kernels have it loaded, and Python cannot give it the keys.
"""

from __future__ import annotations

import datetime
import hmac
import os
import socket
import ssl
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from distrun.errors import BootstrapError

T = TypeVar("T")

_RECORD_HEADER = 5  # bytes: type, version (2), length (2)
_SENT_AT_ONCE = 1 << 17  # bytes that are encrypted before they are passed to the kernel: eight records
_READ_AT_ONCE = 1 << 18
_BORN, _DIES = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)  # valid whatever a host's clock shows


class TlsError(BootstrapError):
    """The other side does not show the certificate of this connection, or data was changed in transmission."""


class Session:
    """One side of a TLS connection. It does not send or receive itself: its methods yield the bytes."""

    def __init__(self, key: bytes, transcript: bytes, is_server: bool) -> None:
        """
        Args:
            key: the job key.
            transcript: the transcript of the handshake, with fresh random bytes of both sides.
            is_server: whether this is the server's side.
        """
        server, client = (_Identity(key, side, transcript) for side in (b"server", b"client"))
        own, peer = (server, client) if is_server else (client, server)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=peer.certificate)
        if is_server:
            context.num_tickets = 0  # sessions are never resumed
        own.show_in(context)
        self._expected = peer.certificate
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=is_server)

    def handshake(self) -> Generator[bytes | int, bytes, None]:
        """Run the TLS handshake. Yields bytes to send, or a number of bytes to receive.

        Raises:
            TlsError: the other side does not show the certificate of this connection.
        """
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                yield self.outgoing.read()
                yield from self._receive_record()
            except ssl.SSLError as error:
                yield self.outgoing.read()  # the alert
                raise TlsError(f"the other side cannot encrypt with the job key ({error.reason})") from None
        yield self.outgoing.read()
        if self.tls.getpeercert(binary_form=True) != self._expected:
            raise TlsError("the other side shows a certificate of another connection")

    def through(self, inner: Generator[bytes | int, bytes, T]) -> Generator[bytes | int, bytes, T]:
        """Run the handshake `inner` inside TLS. Yields encrypted bytes and returns its result.

        Raises:
            TlsError: data was changed in transmission.
        """
        try:
            step = next(inner)
            while True:
                received = b""
                if isinstance(step, bytes):
                    self.tls.write(step)
                    yield self.outgoing.read()
                else:
                    received = yield from self._receive(step)
                step = inner.send(received)
        except StopIteration as end:
            result: T = end.value
            return result

    def _receive(self, size: int) -> Generator[bytes | int, bytes, bytes]:
        received = b""
        while len(received) < size:
            try:
                received += self.tls.read(size - len(received))
            except ssl.SSLWantReadError:
                yield from self._receive_record()
            except ssl.SSLError as error:
                raise TlsError(f"what came was changed on the way ({error.reason})") from None
        return received

    def _receive_record(self) -> Generator[bytes | int, bytes, None]:
        """Receive exactly one record, so that data after the handshake is left for the socket."""
        header = yield _RECORD_HEADER
        body = yield int.from_bytes(header[3:], "big")
        self.incoming.write(header + body)


class _Identity:
    """The certificate of one side of one connection, with its private key."""

    def __init__(self, key: bytes, side: bytes, transcript: bytes) -> None:
        seed = hmac.digest(key, b"distrun tls " + side + b"\0" + transcript, "sha256")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"distrun {side.decode()}")])
        builder = x509.CertificateBuilder(name, name, self._key.public_key(), 1, _BORN, _DIES)
        # Ed25519 signatures are deterministic, so both sides make the same bytes.
        self._made = builder.sign(self._key, None)
        self.certificate = self._made.public_bytes(Encoding.DER)

    def show_in(self, context: ssl.SSLContext) -> None:
        """Make `context` show this certificate. OpenSSL reads it from a file, here one in memory without a name."""
        file = os.memfd_create("distrun-tls")
        try:
            os.write(file, self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            os.write(file, self._made.public_bytes(Encoding.PEM))
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)


class TlsSocket(socket.socket):
    """A TCP connection that encrypts all data, after the TLS handshake.

    It behaves like the socket that it replaces, blocking or not, in `send`, `sendall`, `recv` and `recv_into`. If it is
    non-blocking, `send` raises BlockingIOError until all that it has encrypted has been sent, and the data of the next
    call must begin with the same bytes. Decrypted data that did not fit into the buffer of `recv_into` is kept here,
    where a poll does not see it, so callers must read until there is no more data.
    """

    reads_ahead = True

    def __init__(self, connection: socket.socket, session: Session) -> None:
        """Take over the descriptor of a connection."""
        timeout = connection.gettimeout()
        super().__init__(connection.family, connection.type, connection.proto, connection.detach())
        self.settimeout(timeout)
        self._tls, self._incoming, self._outgoing = session.tls, session.incoming, session.outgoing
        self._unsent = memoryview(b"")
        """Encrypted bytes that have not been sent."""
        self._accepted = 0
        """The number of plain bytes that the last `send` encrypted, the result of `send` once `_unsent` is sent."""
        self._raw = memoryview(bytearray(_READ_AT_ONCE))
        self._record = bytearray()
        """The beginning of an incomplete record, if the socket is blocking."""
        self._lock = threading.RLock()  # one thread may send while another receives, but OpenSSL does not allow it
        self._is_busy = False

    def send(self, data: Any, flags: int = 0) -> int:
        with self._exclusive():
            if not self._unsent:
                part = memoryview(data)[:_SENT_AT_ONCE]
                done = 0
                while done < len(part):
                    done += self._tls.write(part[done:])
                self._accepted = done
                self._unsent = memoryview(self._outgoing.read())
            while self._unsent:
                self._unsent = self._unsent[super().send(self._unsent) :]
            return self._accepted

    def sendall(self, data: Any, flags: int = 0) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self.send(rest) :]

    def recv(self, size: int, flags: int = 0) -> bytes:
        if flags:  # MSG_PEEK: only asks whether there is data or the end of the connection
            return super().recv(size, flags)
        with self._exclusive():
            parts: list[bytes] = []
            while size:
                part = self._decrypt(size, None, is_enough=bool(parts))
                if not part:
                    break
                parts.append(part)
                size -= len(part)
            return b"".join(parts)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        with self._exclusive():
            rest = memoryview(buffer)[: nbytes or None]
            size = len(rest)
            while rest:
                count = self._decrypt(len(rest), rest, is_enough=len(rest) < size)
                if not count:
                    break
                rest = rest[count:]
            return size - len(rest)

    def _decrypt(self, size: int, into: memoryview | None, is_enough: bool) -> Any:
        """Return up to `size` decrypted bytes of one record, or their number if they are written into `into`.

        b"" or 0 means the end of the connection, or, if `is_enough`, that there is no more data now.
        """
        while True:
            try:
                return self._tls.read(size, into)
            except ssl.SSLWantReadError:
                if is_enough or not self._feed():
                    return b"" if into is None else 0
            except ssl.SSLZeroReturnError:
                return b"" if into is None else 0
            except ssl.SSLError as error:
                raise ConnectionAbortedError(
                    None, f"what came was changed on the way, or not encrypted with the job's keys: {error.reason}"
                ) from None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with self._lock:
            if self._is_busy:  # a signal handler interrupted a call in this thread
                raise BlockingIOError
            self._is_busy = True
            try:
                yield
            finally:
                self._is_busy = False

    def _feed(self) -> bool:
        """Receive more encrypted data. Return False at the end of the connection."""
        if self.gettimeout() == 0.0:
            if self._record:
                self._incoming.write(self._record)
                self._record.clear()
                return True
            count = super().recv_into(self._raw)
            self._incoming.write(self._raw[:count])
            return count > 0
        # At most one record: a caller may poll before it reads the next one, and the poll must see it.
        missing = _RECORD_HEADER - len(self._record)
        if missing <= 0:
            missing += int.from_bytes(self._record[3:_RECORD_HEADER], "big")
        data = super().recv(missing)
        self._record += data
        if len(self._record) == _RECORD_HEADER + int.from_bytes(self._record[3:_RECORD_HEADER], "big"):
            self._incoming.write(self._record)
            self._record.clear()
        return bool(data)
