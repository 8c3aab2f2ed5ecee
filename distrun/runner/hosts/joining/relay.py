"""The process that has joined, while its agent runs: it forwards bytes between the launcher and the agent.

One thread and one loop, and nothing blocks: neither direction waits for the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from distrun.errors import LaunchError
from distrun.runner.decisions import signals
from distrun.runner.decisions.events import Event, SignalReceived
from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.messages import AgentEnd, End, MessageKind
from distrun.runner.hosts.program import AGENT, LocalProgram
from distrun.runner.system.loop import WRITE, Loop

_MOST_PENDING = 1 << 20  # bytes that one side has sent and the other has not taken. Beyond that, reading stops
_READ_AT_ONCE = 1 << 16


class Interruption:
    """The first ending signal that this process receives, if it receives one."""

    def __init__(self) -> None:
        self.signum = 0
        """The signal, once one was received."""
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return a descriptor that is readable once the signal was received."""
        return self._event

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals while this context lasts. Outside the main thread, no signal is noted."""
        with signals.posted(self._note):
            yield

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._event)

    def _note(self, event: Event) -> None:
        if isinstance(event, SignalReceived) and event.signum in signals.ENDING and not self.signum:
            self.signum = event.signum
            os.eventfd_write(self._event, 1)


class Relay:
    """The connection with a launcher that has accepted this host, and the agent here, until the end of the job."""

    def __init__(
        self,
        connection: Connection,
        program: LocalProgram,
        interruption: Interruption,
        keepalive: float,
        clean_up: Callable[[], bool],
    ) -> None:
        """
        Args:
            connection, program: the launcher and the first agent. This object closes both.
            interruption: the signal that ends this process.
            keepalive: seconds after which a launcher that does not answer counts as gone, 0 = never. It applies after
                the agent has ended. Before, the agent watches the launcher.
            clean_up: ends what a dead agent has left behind. Returns whether nothing is left.
        """
        self.end: End | None = None
        """The end of the job, if the launcher has sent it."""
        self.lost = ""
        """Why the connection ended before that. Empty = it has not."""
        self._connection = connection
        self._program = program
        self._interruption = interruption
        self._keepalive = keepalive
        self._clean_up = clean_up
        self._to_agent = bytearray()
        self._stdin, self._stdout = program.descriptors
        self._writable = os.dup(connection.fileno())  # a loop watches a descriptor for one thing
        self._has_agent = self._takes_input = True
        self._loop = Loop()

    def run(self) -> None:
        """Forward bytes until the job is over, the launcher is gone, or a signal ends this process."""
        os.set_blocking(self._stdin, False)
        self._loop.watch(self._connection.fileno(), self._receive)
        self._loop.watch(self._stdout, self._collect)
        self._loop.watch(self._interruption.fileno(), self._interrupt)
        self._receive()  # some messages may have arrived together with the launcher's answer
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
        """Whether the connection is not needed any longer."""
        has_said_all = bool(self._interruption.signum) and not self._connection.pending
        return self.end is not None or bool(self.lost) or has_said_all

    # --- from the launcher to the agent

    def _receive(self) -> None:
        try:
            for kind, payload in self._connection.receive():
                self._obey(kind, payload)
        except LaunchError as error:
            self._lose(str(error))
        except OSError as error:
            self._lose(error.strerror or str(error))

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
        """Write what the agent takes now. Stops receiving from the launcher while too much is left."""
        try:
            while self._to_agent:
                del self._to_agent[: os.write(self._stdin, self._to_agent)]
        except BlockingIOError:
            self._loop.watch(self._stdin, self._feed, WRITE)
        except OSError:  # it is gone, which the end of its stdout tells
            self._end_input()
        else:
            if self._takes_input:
                self._loop.unwatch(self._stdin)
        self._listen(self._connection.fileno(), self._receive, len(self._to_agent) < _MOST_PENDING and not self.lost)

    def _end_input(self) -> None:
        if self._takes_input:
            self._takes_input = False
            self._loop.unwatch(self._stdin)
            self._program.end_input()
            self._to_agent.clear()

    def _start_again(self) -> None:
        """Start another agent: an elastic job that has let the last one end uses this host again."""
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
            self._send(MessageKind.OUTPUT, data)
        else:
            self._agent_ended()

    def _agent_ended(self) -> None:
        self._loop.unwatch(self._stdout)
        self._end_input()
        self._has_agent = False
        returncode = self._program.wait()
        is_clean = self._clean_up() if returncode else True
        end = AgentEnd(returncode, self._interruption.signum, is_clean)
        if not self.lost:
            self._connection.set_keepalive(self._keepalive)
        self._send(MessageKind.EXITED, end.to_json())

    def _send(self, kind: MessageKind, payload: bytes) -> None:
        if not self.lost:
            self._connection.put(kind, payload)
            self._flush()

    def _flush(self) -> None:
        """Send what can be sent now. Stops reading from the agent while too much is left."""
        try:
            self._connection.flush()
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        if self._connection.pending:
            self._loop.watch(self._writable, self._flush, WRITE)
        else:
            self._loop.unwatch(self._writable)
        self._listen(self._stdout, self._collect, self._connection.pending < _MOST_PENDING and self._has_agent)

    # --- both

    def _listen(self, descriptor: int, callback: Callable[[], None], is_wanted: bool) -> None:
        if is_wanted:
            self._loop.watch(descriptor, callback)
        else:
            self._loop.unwatch(descriptor)

    def _lose(self, reason: str) -> None:
        """Give up the launcher. The agent notices the end of its stdin, and ends its ranks."""
        self.lost = self.lost or reason
        self._loop.unwatch(self._connection.fileno())
        self._loop.unwatch(self._writable)
        self._end_input()
        self._listen(self._stdout, self._collect, self._has_agent)

    def _interrupt(self) -> None:
        """End the agent, which gives its ranks their grace period."""
        self._loop.unwatch(self._interruption.fileno())
        with suppress(ProcessLookupError):
            self._program.terminate()
