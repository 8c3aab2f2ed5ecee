"""The control channels of the processes of an elastic job, on their way between each process and the launcher.

A channel is a pair of Unix sockets that keep messages whole. What a process does not take at once waits here.
"""

from __future__ import annotations

import socket
from collections import deque
from functools import partial

from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.agent.rank_process import RankProcess
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system.loop import WRITE, Loop

_LONGEST = 1 << 22  # bytes of a message; the kernel takes shorter ones only


class ControlRelay:
    """Passes messages on in both directions, unread."""

    def __init__(self, loop: Loop, launcher: LauncherConnection) -> None:
        """Args: the event loop; the launcher, which gets what processes say."""
        self._loop = loop
        self._launcher = launcher
        self._channels: dict[int, socket.socket] = {}
        self._writers: dict[int, socket.socket] = {}  # copies: the loop watches a descriptor for one thing only
        self._pending: dict[int, deque[bytes]] = {}

    def add(self, process: RankProcess) -> None:
        """Begin to listen to a process."""
        if process.control is not None:
            self._channels[process.number] = process.control
            self._loop.watch(process.control.fileno(), partial(self._read, process.number))

    def send(self, number: int, message: bytes) -> None:
        """Hand a process a message as soon as it takes it; one that is gone gets none."""
        if number in self._channels:
            self._pending.setdefault(number, deque()).append(message)
            self._write(number)

    def drain(self, number: int) -> None:
        """Pass on all that a process has said that is gone, and close its channel."""
        while number in self._channels and self._read(number):
            pass
        self._close(number)

    def _read(self, number: int) -> bool:
        """Pass the next message on; return whether there was one."""
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
