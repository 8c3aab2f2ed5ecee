"""The reception: a thread that takes in the hosts of a job, and keeps the connections of those that have joined."""

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
from distrun.runner.hosts.joining.admission import Admission, say_last
from distrun.runner.hosts.joining.messages import MAY_BE_TRIED_AGAIN, End, LostError, Member, MessageKind, encode
from distrun.runner.hosts.joining.roster import Roster
from distrun.runner.protocol.handshake import HostError
from distrun.runner.system.loop import Loop

_CHECK_INTERVAL = 1.0  # seconds after which clients that say nothing are looked for
_TELL_INTERVAL = 10.0  # seconds after which the user is told again who is missing


class LateError(LaunchError):
    """Too few hosts have joined in time."""

    status = MAY_BE_TRIED_AGAIN


class InterruptedByError(LaunchError):
    """A signal came before the job began."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"the launcher received {signal.Signals(signum).name} before the job began")
        self.signum = signum


class JoinListener:
    """Takes in the hosts of one job. Methods may be called by any thread."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        secret: bytes,
        own: Member,
        job: str,
        say: Callable[[str], None],
        keepalive: float,
        is_elastic: bool = False,
    ) -> None:
        """Begin to listen.

        Args:
            listeners: sockets that listen, which this object closes.
            secret: what the hosts know each other by.
            own: the launcher's own host.
            job: the name of the job.
            say: tells the user.
            keepalive: seconds of silence after which an agent, or the launcher, counts as gone; 0 = never.
            is_elastic: whether hosts may be replaced.
        """
        self.job = job
        self.keepalive = keepalive
        self._say = say
        self._is_elastic = is_elastic
        self._admission = Admission(listeners, secret, say)
        self._roster = Roster(own, is_elastic)
        self._waiting: dict[int, socket.socket] = {}  # by index
        self._without_agent: set[int] = set()  # those of them that must start an agent first
        self._parted: dict[int, socket.socket] = {}  # whose agents have ended, and who wait for the end of the job
        self._contested: set[int] = set()  # indices of which the user knows that two hosts have them
        self._changed = threading.Condition()
        self._on_change: Callable[[], None] = lambda: None
        self._interrupted_by = 0
        self._failure = ""  # why nobody is taken in any more
        self._is_closing = False
        self._to_watch: list[tuple[int, socket.socket]] = []  # for the thread, which has the loop
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = Loop()
        self._loop.watch(self._admission.fileno(), self._admit)
        self._loop.watch(self._wakeup, lambda: os.eventfd_read(self._wakeup))
        self._thread = threading.Thread(target=self._run, name="distrun reception", daemon=True)
        self._thread.start()

    # --- gathering

    def gather(self, timeout: float, least: int | None = None) -> list[Member]:
        """Wait until all hosts have joined.

        Args:
            timeout: seconds for that.
            least: the number of ranks that is enough when the time is over; None = all hosts must come.

        Returns:
            The members, in the order of their indices, with names of their own.

        Raises:
            LateError: too few have joined in time. Those who have are told by `close`.
            InterruptedByError: `interrupt` was called.
            LaunchError: no more can join.
        """
        begun = told = time.monotonic()
        with self._changed:
            while self._roster.missing and not self._interrupted_by:
                if self._failure:
                    raise LaunchError(self._failure)
                now = time.monotonic()
                if now >= begun + timeout:
                    if least is not None and self._roster.ranks >= least:
                        break
                    raise LateError(self._describe_late(timeout))
                if now >= told + _TELL_INTERVAL:
                    told = now
                    self._say(f"waiting for hosts: {self._roster.describe_missing()}")
                self._changed.wait(min(begun + timeout, told + _TELL_INTERVAL) - now)
            self.check_interrupted()
            self._roster.has_begun = True
            return self._roster.listed()

    def interrupt(self, signum: int) -> None:
        """Have `gather` give up because of a signal."""
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
        """Call back whenever a host has joined or left (any thread)."""
        self._on_change = on_change

    # --- the connections

    def take(self, name: str, deadline: float) -> tuple[int, socket.socket, Member]:
        """Take the connection of a host, and its index.

        Raises:
            LostError: it has left, and is not waited for.
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
                with suppress(OSError):  # it is gone, which the handshake notices
                    connection.sendall(encode(MessageKind.ACCEPTED))
            return index, connection, self._roster.members[index]

    def part(self, index: int, connection: socket.socket, is_well: bool) -> None:
        """Take back the connection of a host whose agent has ended.

        Args:
            index, connection: what `take` returned.
            is_well: whether the host can start another agent.
        """
        with self._changed:
            if not self._is_elastic or self._is_closing:
                self._parted[index] = connection
            elif is_well:
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
        """Tell all hosts that the job is over, and listen no more."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        os.eventfd_write(self._wakeup, 1)
        self._thread.join()
        self._admission.close()
        self._loop.close()
        os.close(self._wakeup)
        for connection in (*self._waiting.values(), *self._parted.values()):
            say_last(connection, MessageKind.OVER, end.to_json())

    # --- the thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._loop.run_once(_CHECK_INTERVAL)
                self._admit()
        except Exception as error:  # any at all: hosts that nobody takes in any more would be waited for
            self._fail(str(error) if isinstance(error, DistrunError) else repr(error))

    def _fail(self, reason: str) -> None:
        """Take in nobody any more: who is waited for is told, and so is who calls."""
        self._admission.close()
        with self._changed:
            self._failure = f"no host can join any more: {reason}"
            self._changed.notify_all()
            goes_on = self._is_elastic and self._roster.has_begun
        if goes_on:
            self._say(self._failure)

    def _admit(self) -> None:
        with self._changed:
            back, self._to_watch = self._to_watch, []
            for index, connection in back:
                if self._waiting.get(index) is connection:
                    self._watch(index, connection)
        while (caller := self._admission.next()) is not None:
            self._receive(*caller)

    def _receive(self, connection: socket.socket, member: Member) -> None:
        with self._changed:
            refusal, occupant = self._roster.refusal(member), self._roster.occupant(member)
            if not refusal and not occupant:
                self._accept(connection, member)
                return
            is_final = bool(refusal) or not self._roster.may_become_free()
        if refusal or (not self._roster.has_begun and member.index not in self._contested):
            self._say(refusal or occupant)
        if occupant:  # it calls again every second
            self._contested.add(member.index)
        kind = MessageKind.REFUSED if is_final else MessageKind.OCCUPIED
        say_last(connection, kind, (refusal or occupant).encode())

    def _accept(self, connection: socket.socket, member: Member) -> None:
        name = self._roster.join(member)
        said = {"job": self.job, "host": name, "keepalive": self.keepalive}
        with suppress(OSError):  # it is gone again, which is noticed like that of any other
            connection.sendall(encode(MessageKind.ACCEPTED, json.dumps(said).encode()))
        self._waiting[member.index] = connection
        self._watch(member.index, connection)
        self._changed.notify_all()
        self._on_change()

    def _watch(self, index: int, connection: socket.socket) -> None:
        """Notice that a host goes while it waits: it has nothing to say before its agent is spoken to."""
        descriptor = connection.fileno()

        def leave() -> None:
            self._loop.unwatch(descriptor)
            with self._changed:
                if self._waiting.get(index) is connection:  # otherwise its agent speaks
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

    def _describe_late(self, timeout: float) -> str:
        refused = self._admission.describe_refused()
        return (
            f"{self._roster.describe_missing()} within {timeout:g} s{f' ({refused})' if refused else ''}: see that all "
            "are started, that they find this host and that DISTRUN_KEY is the same everywhere, or give them more time "
            "with --start-timeout"
        )
