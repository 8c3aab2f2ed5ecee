"""The live output of ranks: task 0 connects to the driver, and output that it cannot send comes with its report."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import BinaryIO, TextIO

from distrun.errors import DistrunError
from distrun.host.connections.dialer import dial
from distrun.host.connections.listener import Listener, listen
from distrun.runner.output.sinks import TextSink

_HEADER = struct.Struct("!BI")  # of a line: 0 stdout, 1 stderr; its length
_REACH_TIMEOUT = 60.0  # seconds to try to connect to the driver: some clusters block connections to it
_TAKE_TIMEOUT = 10.0  # seconds for the driver to receive a line: a driver that hangs blocks ranks no longer
_KEPT = 1 << 20  # the last bytes of each stream that are kept for the report


@contextlib.contextmanager
def printed_live(
    addresses: tuple[str, str] | None, key: bytes, stdout: TextIO, stderr: TextIO
) -> Iterator[tuple[str, int] | None]:
    """Print the lines that task 0 sends. Yields the address for task 0 to connect to, or None if it cannot.

    Args:
        addresses: the address where this process listens, and the address by which tasks reach it (names or numeric).
        key: the secret of the job.
        stdout, stderr: where to print.
    """
    output = None
    with contextlib.suppress(OSError):  # the name is unknown here, or the address is not one of this machine
        output = LiveOutput(addresses[0], key, stdout, stderr) if addresses else None
    if addresses is None or output is None:
        yield None
        return
    try:
        yield addresses[1], output.port
    finally:
        output.close()


class LiveOutput:
    """The driver's side: prints the lines that task 0 sends, in a thread of its own, until `close`."""

    def __init__(self, address: str, key: bytes, stdout: TextIO, stderr: TextIO) -> None:
        """Begin to listen. Raises OSError if the address is not one of this machine."""
        digits = str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
        self._listener = Listener([listen(digits)], _secret(key), is_encrypted=True)
        self.port = self._listener.endpoints[0][1]
        self._sinks = (TextSink(stdout), TextSink(stderr))
        self._connection: socket.socket | None = None
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="distrun live output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Print the lines that are on their way, and stop listening."""
        os.eventfd_write(self._wakeup, 1)
        self._thread.join(_TAKE_TIMEOUT)  # task 0 has closed the connection, unless its host has vanished
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        os.close(self._wakeup)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        with contextlib.suppress(OSError, DistrunError):  # the rest is in the report, if there is one
            while all(ready != self._wakeup for ready, _ in poll.poll()):
                client = self._listener.receive(0)
                if client is not None:
                    self._connection = client[0]
                    with self._connection, self._connection.makefile("rb") as source:
                        self._print(source)
                    return

    def _print(self, source: BinaryIO) -> None:
        while len(header := source.read(_HEADER.size)) == _HEADER.size:
            stream, length = _HEADER.unpack(header)
            self._sinks[stream].write(source.read(length))


class DriverLine:
    """The task's side: sends lines to the driver, and keeps those that could not be sent."""

    def __init__(self, endpoint: tuple[str, int] | None, key: bytes) -> None:
        """Begin to connect to the driver at `endpoint`. None: do not connect."""
        self._connection: socket.socket | None = None
        self._left = (bytearray(), bytearray())
        self._lock = threading.Lock()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC)
        self._caller = threading.Thread(target=self._call, args=(endpoint, key), daemon=True)
        self._caller.start()

    def send(self, stream: int, line: bytes) -> None:
        """Send a line to the driver, or keep it. Any thread may call this."""
        with self._lock:
            if not self._has_sent(stream, line):
                left = self._left[stream]
                left += line
                if len(left) > 2 * _KEPT:
                    del left[:-_KEPT]

    def close(self) -> tuple[bytes, bytes]:
        """Stop connecting and sending. Return the last output that was not sent, of each stream."""
        os.eventfd_write(self._wakeup, 1)
        self._caller.join()
        os.close(self._wakeup)
        with self._lock:
            self.hang_up()
            return bytes(self._left[0][-_KEPT:]), bytes(self._left[1][-_KEPT:])

    def _call(self, endpoint: tuple[str, int] | None, key: bytes) -> None:
        if endpoint is None:
            return
        deadline = time.monotonic() + _REACH_TIMEOUT
        with contextlib.suppress(OSError, DistrunError):
            line = dial([endpoint], _secret(key), {}, deadline, stop_on=[self._wakeup], is_encrypted=True).socket
            line.settimeout(_TAKE_TIMEOUT)
            with self._lock:
                self._connection = line
                for stream, left in enumerate(self._left):
                    if left and self._has_sent(stream, bytes(left)):
                        left.clear()

    def _has_sent(self, stream: int, data: bytes) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.sendall(_HEADER.pack(stream, len(data)) + data)
        except OSError:
            self.hang_up()
            return False
        return True

    def hang_up(self) -> None:
        """Close the connection. Later lines are kept."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _secret(key: bytes) -> bytes:
    """Return the key of this connection, derived from the job's."""
    return hashlib.sha256(b"distrun spark output\0" + key).digest()
