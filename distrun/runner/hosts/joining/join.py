"""A host that joins: it finds the launcher, which may be late, and is an agent's host until the job is over."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from distrun.errors import BootstrapError, LaunchError
from distrun.host.connections.dialer import dial
from distrun.host.connections.tcp_options import set_tcp_options
from distrun.host.endpoints import format_endpoint
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.interruption import Interruption
from distrun.runner.hosts.joining.messages import MAY_BE_TRIED_AGAIN, End, Member, MessageDecoder, MessageKind
from distrun.runner.hosts.joining.relay import Relay
from distrun.runner.hosts.program import AGENT, LocalProgram
from distrun.runner.system import descendants

_RESOLVE_AGAIN = 5.0  # seconds of looking for the launcher; then its name is looked up again, as it may have moved
_TELL_INTERVAL = 30.0  # seconds after which the user is told again what is waited for
_RETRY = 1.0  # seconds after which an index is asked for again that another process has
_ANSWER_TIMEOUT = 10.0  # seconds in which the launcher says whether we may join


class UnreachableError(LaunchError):
    """The launcher was not found in time."""

    status = MAY_BE_TRIED_AGAIN


class RefusedError(LaunchError):
    """The launcher does not take this host."""


class _OccupiedError(LaunchError):
    """Another process has our index."""


class Joiner:
    """One host that joins a job."""

    def __init__(
        self, point: JoinEndpoint, member: Member, interruption: Interruption, say: Callable[[str], None]
    ) -> None:
        """
        Args:
            point: where the launcher is.
            member: how we introduce ourselves.
            interruption: tells when this process is to end.
            say: tells the user.
        """
        self._point = point
        self._member = member
        self._interruption = interruption
        self._say = say
        self._where = format_endpoint(*point.endpoint)
        self._told_at = float("-inf")
        self._job = self._host = ""
        self._keepalive = 0.0
        self._children = descendants.children()

    def run(self) -> End:
        """Join until the job is over; the end says how.

        Raises:
            LaunchError: the launcher was not found in time, or does not take us.
        """
        while True:
            agent = LocalProgram(AGENT)  # it imports what it needs while the launcher is looked for
            found = None
            try:
                found = self._find()
            finally:
                if found is None:
                    agent.kill()
                    agent.wait()
                    agent.close()
            if found is None:
                return self._interrupted()
            relay = Relay(*found, agent, self._interruption, self._keepalive, self._clean_up)
            relay.run()
            if relay.end is not None:
                return relay.end
            if self._interruption.signum:
                return self._interrupted()
            self._say(f"the connection with the launcher at {self._where} is gone: {relay.lost}")
            if not self._point.rejoins:
                return End(MAY_BE_TRIED_AGAIN)
            self._told_at = time.monotonic()

    def _interrupted(self) -> End:
        return End(128 + self._interruption.signum, told_to_end=self._interruption.signum)

    # --- finding the launcher

    def _find(self) -> tuple[socket.socket, MessageDecoder] | None:
        """Return a connection with the launcher, which has accepted us; None: this process is to end."""
        deadline = time.monotonic() + self._point.timeout
        while not self._interruption.signum:
            now = time.monotonic()
            try:
                return self._call(min(deadline, now + _RESOLVE_AGAIN))
            except _OccupiedError as error:
                reason = str(error)
                self._await_interruption(_RETRY)
            except BootstrapError as error:
                reason = str(error).replace("the job key", "DISTRUN_KEY")
            if time.monotonic() >= deadline:
                raise UnreachableError(
                    f"the launcher at {self._where} was not reached within {self._point.timeout:g} s: {reason}; see "
                    "that host 0 runs, and that DISTRUN_KEY is the same on all hosts"
                )
            if time.monotonic() >= self._told_at + _TELL_INTERVAL and not self._interruption.signum:
                self._told_at = time.monotonic()
                self._say(f"waiting for the launcher at {self._where}: {reason}")
        return None

    def _call(self, deadline: float) -> tuple[socket.socket, MessageDecoder]:
        connection = dial(
            [self._point.endpoint],
            self._point.secret,
            self._member.to_json(),
            deadline,
            stop_on=[self._interruption.fileno()],
            is_encrypted=True,
        ).socket
        try:
            with suppress(OSError):
                set_tcp_options(connection, may_be_unread=True)
            return connection, self._answer(connection)
        except OSError as error:
            connection.close()
            raise BootstrapError(f"it did not say whether this host may join: {error}") from None
        except BaseException:
            connection.close()
            raise

    def _answer(self, connection: socket.socket) -> MessageDecoder:
        """Wait for the launcher's consent; return the decoder of what follows."""
        decoder = MessageDecoder()
        connection.settimeout(_ANSWER_TIMEOUT)
        while data := connection.recv(1 << 16):
            for kind, payload in decoder.feed(data):
                text = payload.decode(errors="replace")
                if kind is MessageKind.ACCEPTED:
                    said = json.loads(text)
                    self._job, self._host = str(said["job"]), str(said["host"])
                    self._keepalive = float(said["keepalive"])
                    return decoder
                if kind is MessageKind.OCCUPIED:
                    raise _OccupiedError(text)
                raise RefusedError(f"the launcher at {self._where} does not take this host: {text}")
        raise ConnectionResetError("it closed the connection")

    def _await_interruption(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._interruption.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)

    # --- the end

    def _clean_up(self) -> bool:
        """End what a dead agent has left behind: this process has adopted it."""
        is_clean = descendants.end_all(marker=f"DISTRUN_JOB={self._job}", spare=self._children)
        from distrun.runner.system import scratch

        scratch.remove_all({**os.environ, "DISTRUN_JOB": self._job, "DISTRUN_HOSTNAME": self._host})
        return is_clean


def join(point: JoinEndpoint, member: Member, say: Callable[[str], None]) -> End:
    """Join a job as one of its hosts, and stay until it is over.

    Args:
        point: where the launcher is.
        member: how this host introduces itself.
        say: tells the user what is waited for, and why.

    Returns:
        The end of the job; its status is that of a signal that ended this process, or 143 where the launcher vanished
        without a word.

    Raises:
        LaunchError: the launcher was not found in time, or does not take this host.
    """
    interruption = Interruption()
    descendants.set_subreaper()
    try:
        with interruption.listening():
            return Joiner(point, member, interruption, say).run()
    finally:
        descendants.set_subreaper(False)
        interruption.close()
