"""The control channels of an elastic job's processes, which the agent relays between each process and the launcher.

A channel is a pair of SOCK_SEQPACKET sockets, which keep message boundaries. Messages that a process does not take at
once are queued here.
"""

from __future__ import annotations

import socket
from collections import deque
from functools import partial

from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.agent.rank_process import RankProcess
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system.loop import WRITE, Loop

_LONGEST = 1 << 22  # bytes of a message, more than the kernel accepts


class ControlRelay:
    """Relays messages in both directions, without reading them."""

    def __init__(self, loop: Loop, launcher: LauncherConnection) -> None:
        """Args: `loop` is the event loop, and `launcher` gets the processes' messages."""
        self._loop = loop
        self._launcher = launcher
        self._channels: dict[int, socket.socket] = {}
        # Duplicates, as the loop watches a descriptor either for reading or for writing.
        self._writers: dict[int, socket.socket] = {}
        self._pending: dict[int, deque[bytes]] = {}

    def add(self, process: RankProcess) -> None:
        """Begin to relay a process's messages."""
        if process.control is not None:
            self._channels[process.number] = process.control
            self._loop.watch(process.control.fileno(), partial(self._read, process.number))

    def send(self, number: int, message: bytes) -> None:
        """Send `message` to a process as soon as it takes it. If the process is gone, the message is dropped."""
        if number in self._channels:
            self._pending.setdefault(number, deque()).append(message)
            self._write(number)

    def drain(self, number: int) -> None:
        """Relay the last messages of a process that is gone, and close its channel."""
        while number in self._channels and self._read(number):
            pass
        self._close(number)

    def _read(self, number: int) -> bool:
        """Relay the next message. Returns whether there was one."""
        try:
            message = self._channels[number].recv(_LONGEST)
        except BlockingIOError:
            return False
        except ConnectionError:  # it died with messages unread
            message = b""
        if not message:  # it has closed its end
            self._loop.unwatch(self._channels[number].fileno())
            return False
        self._launcher.send(Frame(FrameKind.CONTROL, number, message))
        return True

    def _write(self, number: int) -> None:
        pending = self._pending[number]
        channel = self._channels[number]
        try:
            while pending:
                channel.send(pending[0])
                pending.popleft()
        except BlockingIOError:
            if number not in self._writers:
                self._writers[number] = writer = channel.dup()
                self._loop.watch(writer.fileno(), partial(self._write, number), WRITE)
            return
        except OSError:  # the process, or its end, is gone
            pending.clear()
        self._stop_writing(number)

    def _stop_writing(self, number: int) -> None:
        if (writer := self._writers.pop(number, None)) is not None:
            self._loop.unwatch(writer.fileno())
            writer.close()

    def _close(self, number: int) -> None:
        self._stop_writing(number)
        self._pending.pop(number, None)
        if (channel := self._channels.pop(number, None)) is not None:
            self._loop.unwatch(channel.fileno())
            channel.close()
