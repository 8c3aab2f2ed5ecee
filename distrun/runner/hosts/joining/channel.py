"""The launcher's end of the connection with a host that has joined: the channel of the agent there."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from distrun.errors import LaunchError
from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.messages import AgentEnd, MessageKind

EXIT_TIMEOUT = 10.0
"""Seconds for a host to report the end of an agent that was killed, and of the processes that the agent left."""

_PIECE = 1 << 20  # bytes of input per message
_TAKE_TIMEOUT = 2.0  # seconds for a host to take the request to kill its agent


class Channel:
    """An agent behind a connection. See `distrun.runner.hosts.program.Program` for the interface.

    A frozen host takes and sends nothing, though its kernel answers. So reads have a timeout, and `kill` ends waits.
    """

    def __init__(self, connection: Connection, python: str) -> None:
        """Use a connection until `close`. `python` is the version of the Python there, for errors."""
        self.python = f"Python {python}"
        self.connection = connection
        self.end: AgentEnd | None = None
        """The end of the agent, once it is known."""
        self._output = bytearray()
        self._is_lost = False
        self._sending = threading.Lock()
        self._timer: threading.Timer | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the connection is lost, or the host was told to end, so that the agent is not to blame."""
        return self._is_lost or (self.end is not None and bool(self.end.told_to_end))

    def write(self, data: bytes) -> None:
        """Send the agent all of the data."""
        for start in range(0, len(data), _PIECE):
            self._send(MessageKind.INPUT, data[start : start + _PIECE])

    def end_input(self) -> None:
        """Do nothing: a frame tells agents when to end."""

    def read(self, timeout: float | None) -> bytes:
        """Return the next bytes that the agent wrote, none when the agent or the connection has ended."""
        while not self._output and self.end is None and not self._is_lost:
            self._receive(timeout)
        data = bytes(self._output)
        self._output.clear()
        return data

    def await_end(self, timeout: float) -> AgentEnd | None:
        """Return the end of the agent, which must be near. None = the host does not report it in time."""
        deadline = time.monotonic() + timeout
        with suppress(TimeoutError):
            while self.end is None and not self._is_lost:
                self._receive(max(0.0, deadline - time.monotonic()))
        return self.end

    def wait(self) -> int:
        """Return the agent's exit status."""
        end = self.await_end(EXIT_TIMEOUT)
        return -1 if end is None else end.returncode

    def explain_start(self, output: bytes) -> str:
        """Return the reason why the agent ended before its first frame."""
        if self.end is None:
            return "the connection with it was lost; see what the process there says"
        return f"the agent there did not start (exit code {self.end.returncode}); see what the process there says"

    def kill(self) -> None:
        """Let the host kill the agent. If it does not take the request or report the end, shut down the connection."""
        self._end_within(_TAKE_TIMEOUT)
        with suppress(OSError):
            self._send(MessageKind.KILL)
        self._end_within(EXIT_TIMEOUT)

    def close(self) -> None:
        """Stop using the connection, which stays open."""
        if self._timer is not None:
            self._timer.cancel()

    def _end_within(self, seconds: float) -> None:
        """Shut down the connection, which wakes all waiting callers, unless the agent ends within `seconds`."""

        def end() -> None:
            if self.end is None:
                self.connection.shutdown()

        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, end)
        self._timer.daemon = True
        self._timer.start()

    def _send(self, kind: MessageKind, payload: bytes = b"") -> None:
        with self._sending:
            self.connection.send(kind, payload)

    def _receive(self, timeout: float | None) -> None:
        """Handle the next messages. Raises TimeoutError when none comes in time."""
        if not self.connection.wait(timeout):
            raise TimeoutError
        try:
            messages = self.connection.receive()
        except (OSError, LaunchError):
            self._is_lost = True
            return
        for kind, payload in messages:
            if kind is MessageKind.OUTPUT:
                self._output += payload
            elif kind is MessageKind.EXITED:
                self.end = AgentEnd.from_json(payload)
