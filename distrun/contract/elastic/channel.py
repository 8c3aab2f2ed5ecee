"""A rank's end of the control channel: a thread reads the launcher's messages, and wakes the threads that wait.

`channel` opens it. Only ranks of elastic jobs have a channel, and the thread.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

from distrun.contract.elastic import scratch
from distrun.contract.elastic.messages import PIECE, Assignment, Joiner, Message, Prepare, encode_pieces
from distrun.contract.elastic.variables import CONTROL_FD
from distrun.errors import LaunchError

LAUNCHER_GONE = "the launcher is gone, or the agent on this host"
"""The reason of an interruption when the channel is closed."""


class Channel:
    """The control channel of this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()  # so that the pieces of two messages are not mixed
        self._joiner = Joiner()
        self._changed = threading.Condition()
        self._assignment: Assignment | None = None
        self._prepare: Prepare | None = None
        self._is_gone = False
        self.generation = 0
        """The generation that this process is in, or has last tried to join. 0: none yet."""
        self.stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while `interruption` is not None, so that threads that poll it stop waiting."""
        self.on_interruption: Callable[[], None] = lambda: None
        """Called by the reading thread after each message, which may be an `interruption`."""
        self._thread = threading.Thread(target=self._read, name="distrun control", daemon=True)
        self._thread.start()

    # Messages from the launcher ---------------------------------------------------------------------------------------

    @property
    def interruption(self) -> str | None:
        """The reason why the present generation is over: a newer one, or the launcher is gone. None: it is not over."""
        assignment = self._assignment
        if assignment is not None and assignment.generation > self.generation:
            return assignment.reason
        return LAUNCHER_GONE if self._is_gone else None

    @property
    def planned(self) -> str | None:
        """The reason to leave the present generation at the next step boundary. None: there is none."""
        prepare = self._prepare
        return None if prepare is None or prepare.generation != self.generation else prepare.reason

    def await_assignment(self) -> Assignment:
        """Wait for an assignment that is newer than `generation`, make it the present one, and return it.

        Raises:
            LaunchError: the launcher is gone.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.interruption is not None)
            assignment = self._assignment
            if self._is_gone or assignment is None:
                raise LaunchError(LAUNCHER_GONE)
            self.generation = assignment.generation
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.stop_fd)
            return assignment

    # Sending and reading ----------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message to the launcher.

        Raises:
            LaunchError: the launcher is gone.
        """
        try:
            with self._sending:
                for piece in encode_pieces(message):
                    self._connection.send(piece)
        except OSError as error:
            raise LaunchError(f"{LAUNCHER_GONE} ({error.strerror})") from None

    def _read(self) -> None:
        while True:
            try:
                data = self._connection.recv(2 * PIECE)
            except OSError:
                data = b""
            with self._changed:
                if data:
                    self._note(self._joiner.feed(data))
                else:
                    self._is_gone = True
                self._changed.notify_all()
                if self.interruption is not None:
                    os.eventfd_write(self.stop_fd, 1)
            self.on_interruption()
            if not data:
                return

    def _note(self, message: Message | None) -> None:
        if isinstance(message, Assignment):
            if self._assignment is None or message.generation > self._assignment.generation:
                self._assignment = message
        elif isinstance(message, Prepare):
            self._prepare = message

    def disown(self) -> None:
        """Close the descriptors in a forked child, which has a copy of them but not the thread."""
        os.close(self._connection.detach())
        os.close(self.stop_fd)


_channel: Channel | None = None


def channel() -> Channel | None:
    """Return the control channel of this process, which the first call opens. None: the job is not elastic.

    It is also None if DISTRUN_CONTROL_FD names a descriptor that is not open: a program between the launcher and this
    process has closed it, as `subprocess.run` does. Such a process cannot join another generation.
    """
    global _channel
    if _channel is None and CONTROL_FD in os.environ:
        connection = _open(os.environ[CONTROL_FD])
        if connection is not None:
            _channel = Channel(connection)
            scratch.use()
    return _channel


def opened_channel() -> Channel | None:
    """Return the control channel if this process has opened it."""
    return _channel


def _open(descriptor: str) -> socket.socket | None:
    try:
        connection = socket.socket(fileno=int(descriptor))
    except (ValueError, OSError):
        return None
    if (connection.family, connection.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
        connection.detach()  # a descriptor of something else, which must stay open
        return None
    connection.set_inheritable(False)
    return connection


def _disown() -> None:
    global _channel
    if _channel is not None:
        _channel.disown()
        _channel = None
        os.environ.pop(CONTROL_FD, None)


os.register_at_fork(after_in_child=_disown)
