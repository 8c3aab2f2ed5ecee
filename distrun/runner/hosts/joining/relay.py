"""The process that has joined, while its agent runs: it passes on what launcher and agent say to each other.

One thread and one loop, and nothing blocks: neither direction waits for the other.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from distrun.errors import LaunchError
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.runner.hosts.joining.interruption import Interruption
from distrun.runner.hosts.joining.messages import AgentEnd, End, MessageDecoder, MessageKind, encode
from distrun.runner.hosts.program import AGENT, LocalProgram
from distrun.runner.system.loop import WRITE, Loop

_MOST_PENDING = 1 << 20  # bytes that one side has said and the other has not taken, beyond which we listen no more
_READ_AT_ONCE = 1 << 16


class Relay:
    """One agent and its connection, from the launcher's consent to the end."""

    def __init__(
        self,
        connection: socket.socket,
        decoder: MessageDecoder,
        program: LocalProgram,
        interruption: Interruption,
        keepalive: float,
        clean_up: Callable[[], bool],
    ) -> None:
        """
        Args:
            connection: that to the launcher; this object closes it.
            decoder: has what has come already.
            program: the first agent.
            interruption: tells when this process is to end.
            keepalive: seconds of silence after which the launcher counts as gone once the agent is, which has watched
                it before; 0 = never.
            clean_up: ends what a dead agent has left behind; returns whether nothing is left.
        """
        connection.setblocking(False)
        self.end: End | None = None
        """The end of the job, if the launcher has told it."""
        self.lost = ""
        """Why the connection has ended before; empty = it has not."""
        self._connection = connection
        self._decoder = decoder
        self._program = program
        self._interruption = interruption
        self._keepalive = keepalive
        self._clean_up = clean_up
        self._to_launcher, self._to_agent = bytearray(), bytearray()
        self._stdin, self._stdout = program.descriptors
        self._writable = os.dup(connection.fileno())  # a loop watches a descriptor for one thing
        self._has_agent = self._takes_input = True
        self._loop = Loop()

    def run(self) -> None:
        """Pass on until the launcher tells the end of the job, parts with us, or is gone, or this process is to end."""
        os.set_blocking(self._stdin, False)
        self._loop.watch(self._connection.fileno(), self._hear)
        self._loop.watch(self._stdout, self._collect)
        self._loop.watch(self._interruption.fileno(), self._interrupt)
        self._take(b"")
        try:
            while self._has_agent or not self._is_over:
                self._loop.run_once(None)
        finally:
            self._loop.close()
            os.close(self._writable)
            self._connection.close()
            self._program.kill()
            self._program.close()

    @property
    def _is_over(self) -> bool:
        """Whether there is nothing more to hear from the launcher, nor to say to it."""
        told = bool(self._interruption.signum) and not self._to_launcher
        return self.end is not None or bool(self.lost) or told

    # --- from the launcher to the agent

    def _hear(self) -> None:
        try:
            data = self._connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if data:
            self._take(data)
        else:
            self._lose("the launcher has closed it")

    def _take(self, data: bytes) -> None:
        try:
            for kind, payload in self._decoder.feed(data):
                self._obey(kind, payload)
        except LaunchError as error:
            self._lose(str(error))

    def _obey(self, kind: MessageKind, payload: bytes) -> None:
        match kind:
            case MessageKind.INPUT:
                self._to_agent += payload if self._takes_input else b""
                self._feed()
            case MessageKind.KILL:
                self._program.kill()
            case MessageKind.ACCEPTED if not self._has_agent:
                self._start_again()
            case MessageKind.OVER:
                self.end = End.from_json(payload)
                self._end_input()
            case _:
                raise LaunchError(f"{kind!r} is not for a host that has joined")

    def _feed(self) -> None:
        """Give the agent what it takes now; the launcher is listened to no more while that is too much."""
        try:
            while self._to_agent:
                del self._to_agent[: os.write(self._stdin, self._to_agent)]
        except BlockingIOError:
            self._loop.watch(self._stdin, self._feed, WRITE)
        except OSError:  # it is gone, which its stdout tells
            self._end_input()
        else:
            if self._takes_input:
                self._loop.unwatch(self._stdin)
        self._listen(self._connection.fileno(), self._hear, len(self._to_agent) < _MOST_PENDING and not self.lost)

    def _end_input(self) -> None:
        if self._takes_input:
            self._takes_input = False
            self._loop.unwatch(self._stdin)
            self._program.end_input()
            self._to_agent.clear()

    def _start_again(self) -> None:
        """Start another agent: an elastic job that has parted with the last one wants this host again."""
        self._program.close()
        self._program = LocalProgram(AGENT)
        self._stdin, self._stdout = self._program.descriptors
        self._has_agent = self._takes_input = True
        os.set_blocking(self._stdin, False)
        self._loop.watch(self._stdout, self._collect)

    # --- from the agent to the launcher

    def _collect(self) -> None:
        try:
            data = os.read(self._stdout, _READ_AT_ONCE)
        except OSError:
            data = b""
        if data:
            self._send(encode(MessageKind.OUTPUT, data))
        else:
            self._agent_ended()

    def _agent_ended(self) -> None:
        self._loop.unwatch(self._stdout)
        self._end_input()
        self._has_agent = False
        returncode = self._program.wait()
        is_clean = self._clean_up() if returncode else True
        end = AgentEnd(returncode, self._interruption.signum, is_clean)
        with suppress(OSError):
            set_tcp_options(self._connection, self._keepalive)
        self._send(encode(MessageKind.EXITED, end.to_json()))

    def _send(self, message: bytes) -> None:
        if not self.lost:
            self._to_launcher += message
            self._flush()

    def _flush(self) -> None:
        """Send what can be sent now; the agent is listened to no more while too much is left."""
        try:
            while self._to_launcher:
                del self._to_launcher[: self._connection.send(self._to_launcher)]
        except BlockingIOError:
            self._loop.watch(self._writable, self._flush, WRITE)
        except OSError as error:
            self._lose(error.strerror or str(error))
        else:
            self._loop.unwatch(self._writable)
        self._listen(self._stdout, self._collect, len(self._to_launcher) < _MOST_PENDING and self._has_agent)

    # --- both

    def _listen(self, descriptor: int, callback: Callable[[], None], is_wanted: bool) -> None:
        if is_wanted:
            self._loop.watch(descriptor, callback)
        else:
            self._loop.unwatch(descriptor)

    def _lose(self, reason: str) -> None:
        """Give up the launcher: the agent notices by the end of its stdin, and ends its ranks."""
        self.lost = self.lost or reason
        self._to_launcher = bytearray()  # the other one may still be held by a send that has failed
        self._loop.unwatch(self._connection.fileno())
        self._loop.unwatch(self._writable)
        self._end_input()
        self._listen(self._stdout, self._collect, self._has_agent)

    def _interrupt(self) -> None:
        """End the agent, whose ranks get its grace."""
        self._loop.unwatch(self._interruption.fileno())
        with suppress(ProcessLookupError):
            self._program.terminate()
