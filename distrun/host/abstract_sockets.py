"""Abstract Unix sockets, with checks: every user of the machine can read their names in /proc/net/unix, and take them.

The user of a listening process is found by asking the kernel about the other end of a connection, and never trusted by
name. If another user has taken the name of a socket, it gets a longer one with a random end, which a client finds in
the kernel's list.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from distrun.errors import BootstrapError

_CREDENTIALS = struct.Struct("3i")
_LISTENS = 0x10000  # among the flags in the kernel's list
_LOOK_EVERY = 1.0  # seconds between two reads of the kernel's list
_TABLE = "/proc/net/unix"
# sock_diag(7): struct nlmsghdr, struct unix_diag_req, the size of struct unix_diag_msg, and constants.
_MESSAGE, _DIAG_REQUEST, _DIAG_ANSWER = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII"), 16
_SOCK_DIAG, _BY_FAMILY, _SHOW_UID, _UID, _ANY = 4, 20, 0x40, 7, 0xFFFFFFFF
log = logging.getLogger("distrun")


def listen(kind: socket.SocketKind, name: bytes, backlog: int, may_be_longer: bool = True) -> socket.socket:
    """Return a socket that listens at `name`, or, if another user has taken it, at a name that begins with it.

    Args:
        kind: SOCK_STREAM or SOCK_SEQPACKET.
        name: the name, beginning with a 0 byte.
        backlog: how many connections may wait to be accepted.
        may_be_longer: whether a longer name is allowed.

    Raises:
        OSError: a process of this user listens there, or the name is taken and a longer one is not allowed.
    """
    made = socket.socket(socket.AF_UNIX, kind)
    try:
        try:
            made.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not may_be_longer:
                raise
            owner = _owner(kind, name)
            if owner is not None and owner[1] == os.getuid():
                raise OSError(error.errno, _taken(owner, name)) from None
            made.bind(name + b"-" + secrets.token_hex(8).encode())
            log.warning("%s; this job uses another one", _taken(owner, name))
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made


def connect(kind: socket.SocketKind, name: bytes) -> socket.socket:
    """Return a connection with a process of this user that listens at `name`, without waiting until it is accepted.

    Raises:
        OSError: no process listens there, or too many connections wait to be accepted.
        BootstrapError: a process of another user listens there.
    """
    made = socket.socket(socket.AF_UNIX, kind)
    try:
        made.setblocking(False)  # if the process never accepts, a blocking connect may wait for ever
        made.connect(name)
        made.setblocking(True)
        check_same_user(made)
    except BaseException:
        made.close()
        raise
    return made


def listening(prefix: bytes) -> list[bytes]:
    """Return the names that begin with `prefix` where a process listens, as far as the kernel lists them."""
    return [entry.name for entry in _entries(prefix) if entry.flags & _LISTENS]


class _Entry(NamedTuple):
    """A socket in the kernel's list."""

    flags: int
    kind: int
    inode: int
    name: bytes


def _entries(prefix: bytes) -> Iterator[_Entry]:
    """Yield the sockets whose names begin with `prefix`.

    Num       RefCount Protocol Flags    Type St Inode Path
    00000000eb5a0a9c: 00000002 00000000 00010000 0001 01 15823 @distrun/1000/5f1c0d6a27b94e83/32021
    """
    wanted = "@" + prefix[1:].decode()
    with suppress(OSError), open(_TABLE, encoding="latin-1") as table:
        for line in table:
            fields = line.split()
            if len(fields) == 8 and fields[7].startswith(wanted):
                with suppress(ValueError):  # a name with a line break may result in arbitrary lines
                    name = b"\0" + fields[7][1:].encode("latin-1")
                    yield _Entry(int(fields[3], 16), int(fields[4], 16), int(fields[6]), name)


class Names:
    """The names to try, repeatedly, to connect with a process."""

    def __init__(self, name: bytes) -> None:
        """`name` is the process's name unless another user has taken it."""
        self._name = name
        self._look_at = time.monotonic() + _LOOK_EVERY

    def to_try(self) -> list[bytes]:
        """Return the names to try now: the name itself, and, at most once a second, longer ones that begin with it."""
        if time.monotonic() < self._look_at:
            return [self._name]
        self._look_at = time.monotonic() + _LOOK_EVERY
        return [self._name, *listening(self._name + b"-")]


def peer_process(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of the other end of `connection`."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def check_same_user(connection: socket.socket) -> None:
    """Raise `BootstrapError` if the other end is not a process of this user."""
    pid, uid = peer_process(connection)
    if uid != os.getuid():
        raise BootstrapError(f"process {pid} of user id {uid} is there, and this process is of user id {os.getuid()}")


def describe_taken(kind: socket.SocketKind, name: bytes) -> str:
    """Return `process 7 of user id 1001 has taken the abstract socket @distrun-0b6c62f2`."""
    return _taken(_owner(kind, name), name)


def _taken(owner: tuple[int, int] | None, name: bytes) -> str:
    if owner is None:
        who = "another process"
    else:
        who = f"process {owner[0]} of user id {owner[1]}" if owner[0] else f"a process of user id {owner[1]}"
    return f"{who} has taken the abstract socket @{name[1:].decode()}"


def _owner(kind: socket.SocketKind, name: bytes) -> tuple[int, int] | None:
    """Return the process id, or 0 if it does not accept connections, and the user id of the owner of `name`, or
    None."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
            return peer_process(probe)
        except OSError:
            pass
    for entry in _entries(name):
        if (entry.kind, entry.name) == (kind, name) and (uid := _uid(entry.inode)) is not None:
            return 0, uid
    return None


def _uid(inode: int) -> int | None:
    """Return the user id of a Unix socket, by sock_diag(7), or None if the kernel is too old for it (before 5.3)."""
    request = _DIAG_REQUEST.pack(socket.AF_UNIX, 0, 0, _ANY, inode, _SHOW_UID, _ANY, _ANY)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(_LOOK_EVERY)
            kernel.send(_MESSAGE.pack(_MESSAGE.size + len(request), _BY_FAMILY, 1, 0, 0) + request)
            answer = kernel.recv(4096)
    except OSError:
        return None
    at, size = _MESSAGE.size + _DIAG_ANSWER, len(answer)
    while at + 8 <= size:
        length, kind = struct.unpack_from("=HH", answer, at)
        if kind == _UID:
            return int(struct.unpack_from("=I", answer, at + 4)[0])
        at += max(4, length + 3 & ~3)
    return None
