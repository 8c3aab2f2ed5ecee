"""The rendezvous within a host: its ranks find each other and exchange the file descriptors of what they share.

Local rank 0 is the server: it listens on an abstract Unix socket whose name is derived from the job and its key, or, if
another user has taken that name, on one that begins with it. The others connect, identify themselves and send their
descriptors. Then the server sends the descriptors of all ranks to all ranks. The socket has no name in a file system
and exists only during the rendezvous. Before anything that a peer sent is used, both sides check that the peer belongs
to the same user (SO_PEERCRED) and, if the launcher gave the job a key, that it knows the key.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass

from distrun.contract.elastic import interruption
from distrun.contract.elastic.interruption import Interruption
from distrun.errors import BootstrapError
from distrun.host import abstract_sockets
from distrun.host.abstract_sockets import check_same_user
from distrun.host.connections.authentication import AuthenticationError, client_side, run_handshake, server_side
from distrun.runtime.transport.shared_memory.doorbell import new_bell_fd
from distrun.runtime.transport.shared_memory.segment import new_segment_fd, segment_size

_HELLO = struct.Struct("<II")  # rank, process id
_DESCRIPTORS = 4
_CONTEXT = b"within host"
_HANDSHAKE_TIMEOUT = 5.0  # seconds that rank 0 gives each client


@dataclass(frozen=True)
class LocalRendezvous:
    """The identity of a rendezvous of a host's ranks: it determines the names of its sockets."""

    name: str
    """A text that is the same on all ranks of the rendezvous, and on no others. It need not be secret."""
    key: bytes | None
    """The job key, or None if no launcher of distrun gave one."""

    def address(self, place: str = "") -> bytes:
        """Return the address of the abstract socket of the rendezvous, or of another `place` for these ranks.

        Without the job key, a process cannot derive the name, and so cannot take it before a rank does.
        """
        name = f"{os.getuid()}:{self.name}{place and ':' + place}"
        return b"\0distrun-" + hmac.digest(self.key or b"", name.encode(), "sha256").hex()[:32].encode()


@dataclass(frozen=True)
class PeerInfo:
    """The file descriptors that a rank shares with its local peers, and its process id for messages to users."""

    pid: int
    segment: int
    bell: int
    service_bell: int
    pidfd: int

    @property
    def descriptors(self) -> list[int]:
        """The descriptors in the order they are sent."""
        return [self.segment, self.bell, self.service_bell, self.pidfd]

    def close(self) -> None:
        """Close the descriptors. Mappings of the segment stay."""
        for fd in self.descriptors:
            os.close(fd)


def own_peer_info(size: int) -> PeerInfo:
    """Return new shared objects of this process, on a host with `size` ranks."""
    segment = new_segment_fd(segment_size(size))
    return PeerInfo(os.getpid(), segment, new_bell_fd(), new_bell_fd(), os.pidfd_open(os.getpid()))


def rendezvous_within_host(
    name: str, key: bytes | None, position: int, size: int, timeout: float, interruption: Interruption | None = None
) -> list[PeerInfo]:
    """Return the peer info of all ranks of this host, by position, including this rank's own.

    Args:
        name: a text that is the same on all ranks of the rendezvous, and on no others. It need not be secret.
        key: the job key, or None if no launcher of distrun gave one.
        position: the position of this rank. 0 is the server.
        size: the number of ranks.
        timeout: seconds to wait for the slowest rank.
        interruption: may end the wait earlier.

    Raises:
        BootstrapError: a rank did not connect in time, another process took its place, or the wait was interrupted.
    """
    mine = own_peer_info(size)
    if size == 1:
        return [mine]
    address = LocalRendezvous(name, key).address()
    deadline = _Deadline(timeout, interruption)
    with ExitStack() as undo:
        undo.callback(mine.close)
        if position == 0:
            everybody = _serve(address, key or b"", size, mine, deadline, undo)
        else:
            everybody = _join(address, key or b"", position, size, mine, deadline, undo)
        undo.pop_all()
    return everybody


class _Deadline:
    """The time when waiting ends, and the interruption that may end it earlier."""

    def __init__(self, timeout: float, interruption: Interruption | None) -> None:
        self.timeout = timeout
        self._time = time.monotonic() + timeout
        self.interruption = interruption

    def left(self) -> float:
        """Return the seconds that are left, at least 0.001, since 0 would make a socket non-blocking."""
        return max(0.001, self._time - time.monotonic())

    def is_over(self) -> bool:
        return time.monotonic() > self._time

    def await_readable(self, connection: socket.socket) -> None:
        """Return when there is something to read. Raises `TimeoutError`, and `BootstrapError` if interrupted."""
        interruption.await_readable(connection, self._time, self.interruption)

    def pause(self, seconds: float) -> None:
        """Sleep for `seconds`. Raises `BootstrapError` if interrupted."""
        interruption.pause(seconds, self.interruption)

    def check(self) -> None:
        """Raise `BootstrapError` if the wait was interrupted."""
        interruption.check(self.interruption)


def _serve(
    address: bytes, secret: bytes, size: int, mine: PeerInfo, deadline: _Deadline, undo: ExitStack
) -> list[PeerInfo]:
    present: dict[int, PeerInfo] = {0: mine}
    with ExitStack() as connections:
        try:
            listener = connections.enter_context(abstract_sockets.listen(socket.SOCK_SEQPACKET, address, size))
        except OSError as error:
            raise BootstrapError(f"rank 0 cannot listen for the other ranks of this host: {error}") from None
        clients: list[socket.socket] = []
        while len(present) < size:
            missing = sorted(set(range(size)) - set(present))
            client = connections.enter_context(_accept(listener, deadline, missing, size))
            try:
                position, peer_info = _receive_client(client, secret, deadline)
            except (OSError, BootstrapError):
                deadline.check()
                client.close()  # not a rank of this job: keep waiting for those
                continue
            if position not in missing:
                peer_info.close()
                client.close()
                continue
            undo.callback(peer_info.close)
            present[position] = peer_info
            clients.append(client)
        everybody = [present[rank] for rank in range(size)]
        for client in clients:
            for peer_info in everybody:
                socket.send_fds(client, [_HELLO.pack(0, peer_info.pid)], peer_info.descriptors)
    return everybody


def _accept(listener: socket.socket, deadline: _Deadline, missing: list[int], size: int) -> socket.socket:
    try:
        deadline.await_readable(listener)
        return listener.accept()[0]
    except TimeoutError:
        raise BootstrapError(
            f"ranks {missing} of {size} did not call init() within {deadline.timeout:g} s: "
            "see whether they are still starting (raise --start-timeout) or have ended"
        ) from None


def _receive_client(client: socket.socket, secret: bytes, deadline: _Deadline) -> tuple[int, PeerInfo]:
    client.settimeout(_HANDSHAKE_TIMEOUT)
    check_same_user(client)
    until = _Deadline(min(_HANDSHAKE_TIMEOUT, deadline.left()), deadline.interruption)
    run_handshake(client, server_side(secret, _CONTEXT), until.await_readable)
    return _receive(client, until)


def _join(
    address: bytes, secret: bytes, position: int, size: int, mine: PeerInfo, deadline: _Deadline, undo: ExitStack
) -> list[PeerInfo]:
    with _connect(address, deadline) as server:
        server.settimeout(deadline.left())
        try:
            _authenticate(server, secret, deadline)
            socket.send_fds(server, [_HELLO.pack(position, mine.pid)], mine.descriptors)
            everybody = []
            for peer in range(size):
                _, peer_info = _receive(server, deadline)
                if peer == position:
                    peer_info.close()  # copies of this rank's own: keep the originals
                    peer_info = mine
                else:
                    undo.callback(peer_info.close)
                everybody.append(peer_info)
            return everybody
        except TimeoutError:
            raise BootstrapError(
                f"rank {position} met rank 0, but some rank of this host did not come within {deadline.timeout:g} s"
            ) from None
        except ConnectionError as error:
            raise BootstrapError(f"rank 0 ended while the ranks of this host were meeting ({error})") from None


def _authenticate(server: socket.socket, secret: bytes, deadline: _Deadline) -> None:
    """Prove to the server that this rank knows the key, and check that the server does."""
    try:
        run_handshake(server, client_side(secret, _CONTEXT), deadline.await_readable)
    except AuthenticationError:
        raise BootstrapError("the process that listens in rank 0's place does not know the job key") from None


def _connect(address: bytes, deadline: _Deadline) -> socket.socket:
    """Connect as soon as rank 0 listens. There is no event when an abstract socket appears, hence the short pauses."""
    pause = 0.0005
    names = abstract_sockets.Names(address)
    stranger = ""
    while True:
        for name in names.to_try():
            try:
                return abstract_sockets.connect(socket.SOCK_SEQPACKET, name)
            except OSError:
                continue
            except BootstrapError as error:
                stranger = f"; at the name of its socket, {error}"
        if deadline.is_over():
            raise BootstrapError(
                f"rank 0 did not call init() within {deadline.timeout:g} s: see whether it is still starting "
                f"(raise --start-timeout) or has ended{stranger}"
            )
        deadline.pause(pause)
        pause = min(0.02, pause * 1.5)


def _receive(connection: socket.socket, deadline: _Deadline) -> tuple[int, PeerInfo]:
    """Return a peer's position and peer info. The descriptors are closed on exec, as all descriptors here are."""
    deadline.await_readable(connection)
    message, fds, _, _ = socket.recv_fds(connection, _HELLO.size, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if len(message) != _HELLO.size or len(fds) != _DESCRIPTORS:
        for fd in fds:
            os.close(fd)
        raise ConnectionError("it closed the connection" if not message else "it showed no descriptors")
    position, pid = _HELLO.unpack(message)
    return position, PeerInfo(pid, *fds)
