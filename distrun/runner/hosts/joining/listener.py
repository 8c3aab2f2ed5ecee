"""The join listener: a thread that lets the hosts of a job join, and keeps the connections of hosts that wait."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from distrun.errors import DistrunError, LaunchError
from distrun.runner.hosts.joining.admission import Admission, send_last
from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.endpoint import JoinEndpoint
from distrun.runner.hosts.joining.messages import MAY_BE_TRIED_AGAIN, End, LostError, Member, MessageKind
from distrun.runner.hosts.joining.roster import LAST_CALL, Roster
from distrun.runner.protocol.handshake import HostError
from distrun.runner.system.loop import Loop

_CHECK_INTERVAL = 1.0  # seconds after which clients are looked for that have not finished their handshake
_NOTICE_INTERVAL = 10.0  # seconds from one notice of who is missing to the next


class LateError(LaunchError):
    """Too few hosts have joined in time."""

    status = MAY_BE_TRIED_AGAIN


class InterruptedByError(LaunchError):
    """A signal came before the job began."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"the launcher received {signal.Signals(signum).name} before the job began")
        self.signum = signum


class JoinListener:
    """Lets the hosts of one job join. Methods may be called by any thread."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        endpoint: JoinEndpoint,
        own: Member,
        job: str,
        notify_user: Callable[[str], None],
        keepalive: float,
        *,
        is_elastic: bool = False,
        last_call: float = LAST_CALL,
    ) -> None:
        """Begin to listen.

        Args:
            listeners: sockets that listen. This object closes them.
            endpoint: the key of the hosts, whether connections are encrypted, and the timeout.
            own: the host of this process.
            job: the name of the job.
            notify_user: shows a sentence to the user.
            keepalive: seconds without a message after which an agent, or the launcher, counts as gone. 0 = never.
            is_elastic: whether hosts may be replaced.
            last_call: seconds to wait for further hosts once there are `own.least`.
        """
        self.job = job
        self.keepalive = keepalive
        self._endpoint = endpoint
        self._notify_user = notify_user
        self._is_elastic = is_elastic
        self._admission = Admission(listeners, endpoint, notify_user)
        self._roster = Roster(own, is_elastic, last_call, time.monotonic())
        self._waiting: dict[int, Connection] = {}  # by index
        self._without_agent: set[int] = set()  # waiting hosts that must start an agent first
        self._released: dict[int, Connection] = {}  # their agents have ended, and they wait for the end of the job
        self._contested: set[int] = set()  # indices that two hosts have, as the user has been notified
        self._changed = threading.Condition()
        self._on_change: Callable[[], None] = lambda: None
        self._interrupted_by = 0
        self._failure = ""  # why no host can join now
        self._is_closing = False
        self._to_watch: list[tuple[int, Connection]] = []  # for the thread, which has the loop
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = Loop()
        self._loop.watch(self._admission.fileno(), self._admit)
        self._loop.watch(self._wakeup, lambda: os.eventfd_read(self._wakeup))
        self._thread = threading.Thread(target=self._run, name="distrun join listener", daemon=True)
        self._thread.start()

    # --- until the job begins

    def gather(self, least_ranks: int | None = None) -> list[Member]:
        """Wait until all hosts have joined, or enough of them and the last call is over.

        Args:
            least_ranks: the number of ranks that is enough after the timeout. None = too few hosts are an error.

        Returns:
            The members in the order of their indices, with unique names. See `Roster.join`.

        Raises:
            LateError: too few have joined in time. `close` tells those that have.
            InterruptedByError: `interrupt` was called.
            LaunchError: other hosts cannot join.
        """
        now = time.monotonic()
        deadline, next_notice = now + self._endpoint.timeout, now + _NOTICE_INTERVAL
        with self._changed:
            while (begins_at := self._roster.begins_at) > now and not self._interrupted_by:
                if self._failure:
                    raise LaunchError(self._failure)
                if now >= deadline:
                    if least_ranks is not None and self._roster.ranks >= least_ranks:
                        break
                    raise LateError(self._describe_late())
                if now >= next_notice:
                    next_notice = now + _NOTICE_INTERVAL
                    self._notify_user(f"waiting for hosts: {self._roster.describe()}")
                self._changed.wait(min(deadline, next_notice, begins_at) - now)
                now = time.monotonic()
            self.check_interrupted()
            self._roster.has_begun = True
            return self._roster.listed()

    def gather_all(self) -> tuple[list[Member], dict[int, Connection]]:
        """Wait as `gather` does, and take the connections of all hosts before any of them can leave.

        Returns:
            The members, and the connections by index. The caller closes them.
        """
        with self._changed:  # reentrant, and released while `gather` waits
            members = self.gather()
            taken, self._waiting = self._waiting, {}
            return members, taken

    def interrupt(self, signum: int) -> None:
        """Let `gather` raise InterruptedByError because of a signal."""
        with self._changed:
            self._interrupted_by = signum
            self._changed.notify_all()

    def check_interrupted(self) -> None:
        """Raise InterruptedByError if `interrupt` was called."""
        if self._interrupted_by:
            raise InterruptedByError(self._interrupted_by)

    def members(self) -> list[Member]:
        """Return the members that are there now, in the order of their indices."""
        with self._changed:
            return self._roster.listed()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever a host has joined or left, from any thread."""
        self._on_change = on_change

    # --- the connections

    def take(self, name: str, deadline: float) -> tuple[int, Connection, Member]:
        """Take the connection of the host `name`, with its index and its member.

        Raises:
            LostError: it has left, and cannot be replaced.
            HostError: it has not joined again by the deadline.
        """
        with self._changed:
            index = self._roster.index_of(name)
            while index not in self._waiting:
                if not self._is_elastic:
                    raise LostError("it was there, and has gone again before the job began")
                if self._failure:
                    raise HostError(self._failure)
                if self._is_closing or not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise HostError("it has not called the launcher again")
            connection = self._waiting.pop(index)
            if index in self._without_agent:
                self._without_agent.discard(index)
                with suppress(OSError):  # it is gone, which the handshake reports
                    connection.send(MessageKind.ACCEPTED)
            return index, connection, self._roster.members[index]

    def release(self, index: int, connection: Connection, can_start_again: bool) -> None:
        """Return the connection of a host whose agent has ended.

        Args:
            index, connection: what `take` returned.
            can_start_again: whether the host can start another agent.
        """
        with self._changed:
            if not self._is_elastic or self._is_closing:
                self._released[index] = connection
            elif can_start_again:
                self._waiting[index] = connection
                self._without_agent.add(index)
                self._changed.notify_all()
                self._to_watch.append((index, connection))
                os.eventfd_write(self._wakeup, 1)
            else:
                connection.close()
                self._leave(index)

    # --- the end

    def close(self, end: End) -> None:
        """Send all hosts that wait the end of the job, and stop listening."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        os.eventfd_write(self._wakeup, 1)
        self._thread.join()
        self._admission.close()
        self._loop.close()
        os.close(self._wakeup)
        for connection in (*self._waiting.values(), *self._released.values()):
            send_last(connection, MessageKind.OVER, end.to_json())

    # --- the thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._loop.run_once(_CHECK_INTERVAL)
                self._admit()
        except Exception as error:  # any at all: `gather` would wait for hosts that cannot join
            self._fail(str(error) if isinstance(error, DistrunError) else repr(error))

    def _fail(self, reason: str) -> None:
        """Stop listening, and let waiting callers of this object raise the reason. Hosts that call are not answered."""
        self._admission.close()
        with self._changed:
            self._failure = f"no host can join any more: {reason}"
            self._changed.notify_all()
            continues = self._is_elastic and self._roster.has_begun
        if continues:
            self._notify_user(self._failure)

    def _admit(self) -> None:
        with self._changed:
            released, self._to_watch = self._to_watch, []
            for index, connection in released:
                if self._waiting.get(index) is connection:
                    self._watch(index, connection)
        while (caller := self._admission.next()) is not None:
            self._receive(*caller)

    def _receive(self, connection: Connection, member: Member) -> None:
        with self._changed:
            refusal, occupant = self._roster.refusal(member), self._roster.occupant(member)
            if not refusal and not occupant:
                self._accept(connection, member)
                return
            is_final = bool(refusal) or not self._roster.may_become_free()
        if refusal or (not self._roster.has_begun and member.index not in self._contested):
            self._notify_user(refusal or occupant)
        if occupant and member.index is not None:  # it calls again every second, and is notified of once
            self._contested.add(member.index)
        kind = MessageKind.REFUSED if is_final else MessageKind.OCCUPIED
        send_last(connection, kind, (refusal or occupant).encode())

    def _accept(self, connection: Connection, member: Member) -> None:
        joined = self._roster.join(member, time.monotonic())
        assert joined.index is not None
        answer = {"job": self.job, "host": joined.name, "keepalive": self.keepalive}
        with suppress(OSError):  # it is gone again, which its descriptor tells
            connection.send(MessageKind.ACCEPTED, json.dumps(answer).encode())
        self._waiting[joined.index] = connection
        self._watch(joined.index, connection)
        self._changed.notify_all()
        self._on_change()

    def _watch(self, index: int, connection: Connection) -> None:
        """Notice that a host goes while it waits. It sends nothing before the launcher has spoken to its agent."""
        descriptor = connection.fileno()

        def leave() -> None:
            self._loop.unwatch(descriptor)
            with self._changed:
                if self._waiting.get(index) is connection:  # otherwise it was taken, and has sent something
                    del self._waiting[index]
                    self._without_agent.discard(index)
                    connection.close()
                    self._leave(index)

        self._loop.unwatch(descriptor)  # of a connection that was closed since
        self._loop.watch(descriptor, leave)

    def _leave(self, index: int) -> None:
        self._roster.leave(index)
        self._changed.notify_all()
        self._on_change()

    def _describe_late(self) -> str:
        endpoint, refused = self._endpoint, self._admission.describe_refused()
        late = f"{self._roster.describe()} within {endpoint.timeout:g} s{f' ({refused})' if refused else ''}"
        return (
            f"{late}: see that all are started, that they find this host and that {endpoint.key_name} is the same "
            f"everywhere, or give them more time with {endpoint.timeout_option}"
        )
