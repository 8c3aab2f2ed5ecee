"""The launchers of the other hosts while the job runs: an event on one host is sent to the launchers of all others.

The launcher that has hosted the rendezvous forwards what it receives. A launcher whose connection ends before it has
sent that its agent is gone has vanished, and its ranks with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from distrun.errors import LaunchError
from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT
from distrun.runner.decisions import events
from distrun.runner.hosts.joining.connection import Connection
from distrun.runner.hosts.joining.listener import JoinListener
from distrun.runner.hosts.joining.messages import End, MessageKind
from distrun.runner.hosts.nodes.messages import Notification, concerns_others
from distrun.runner.system.loop import WRITE, Loop

_SEND_TIMEOUT = 2.0  # seconds for another launcher to take what is pending


@dataclass(eq=False)
class _Link:
    """A connection with a launcher."""

    connection: Connection
    hosts: list[str]
    """The hosts whose events arrive here. The first is the launcher's own."""
    gone: set[str] = field(default_factory=set)
    """The hosts whose agents have ended as they should."""


class Peers:
    """The other launchers, in a thread of their own."""

    def __init__(
        self,
        here: str,
        connections: Mapping[str, Connection],
        others: Iterable[str],
        join_listener: JoinListener | None = None,
    ) -> None:
        """
        Args:
            here: the host of this process.
            connections: the connections with other launchers, by host. This object closes them.
            others: all other hosts. The events of those without a connection arrive through the only one.
            join_listener: refuses launchers that come too late. This object closes it.
        """
        self.here = here
        self._links = [_Link(connection, [host]) for host, connection in connections.items()]
        if len(self._links) == 1:
            self._links[0].hosts += [host for host in others if host not in connections]
        self._join_listener = join_listener
        self._keepalive = DEAD_HOST_TIMEOUT
        self._queue: SimpleQueue[Notification | threading.Event | None] = SimpleQueue()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._on_notification: Callable[[Notification], None] = lambda notification: None
        self._is_closing = self._is_closed = False
        self._loop = Loop()
        self._thread = threading.Thread(target=self._run, name="distrun nodes", daemon=True)

    def set_keepalive(self, keepalive: float) -> None:
        """Give up a launcher whose host does not answer for `keepalive` seconds, 0 = never. Call it before `start`."""
        self._keepalive = keepalive
        for link in self._links:
            link.connection.set_keepalive(keepalive)

    def start(self, on_notification: Callable[[Notification], None]) -> None:
        """Begin to receive. `on_notification` is called by the thread, with what happens on other hosts."""
        self._on_notification = on_notification
        self._thread.start()

    def notify(self, event: events.Event, stderr_tail: bytes = b"") -> None:
        """Send the other launchers an event of this host, if it concerns them. Does nothing after `close`."""
        if isinstance(event, events.SignalReceived):
            event = replace(event, host=self.here)
        if concerns_others(event) and not self._is_closed:
            self._post(Notification(self.here, event, stderr_tail))

    def flush(self) -> None:
        """Wait until all notifications are handed to the kernel, or for two seconds."""
        done = threading.Event()
        self._post(done)
        done.wait(_SEND_TIMEOUT)

    def close(self) -> None:
        """Send what is pending, and close all connections. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.ident is None:  # the job has never begun
            self._is_closing = True
            self._run()
        else:
            self._post(None)
            self._thread.join()

    def _post(self, item: Notification | threading.Event | None) -> None:
        self._queue.put(item)
        os.eventfd_write(self._wakeup, 1)

    # --- the thread

    def _run(self) -> None:
        self._loop.watch(self._wakeup, self._take_posted)
        for link in self._links:
            self._watch(link)
        while not self._is_closing:
            self._loop.run_once(None)
        for link in self._links:
            link.connection.close(_SEND_TIMEOUT)
        if self._join_listener is not None:
            self._join_listener.close(End(0))
        self._loop.close()
        os.close(self._wakeup)

    def _watch(self, link: _Link) -> None:
        """Watch a connection for what comes, or for the room to send what is pending, which is short and rare."""
        self._loop.unwatch(link.connection.fileno())
        if link.connection.pending:
            self._loop.watch(link.connection.fileno(), lambda: self._flush(link), WRITE)
        else:
            self._loop.watch(link.connection.fileno(), lambda: self._receive(link))

    def _take_posted(self) -> None:
        os.eventfd_read(self._wakeup)
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return
            if item is None:
                self._is_closing = True
            elif isinstance(item, threading.Event):
                item.set()
            else:
                self._forward(item, None)

    def _receive(self, link: _Link) -> None:
        try:
            received = [Notification.from_json(payload) for _, payload in link.connection.receive()]
        except (OSError, LaunchError, ValueError, KeyError, TypeError) as error:
            self._lose(link, error)
            return
        for notification in received:
            if isinstance(notification.event, events.AgentGone):
                link.gone.add(notification.host)
            self._forward(notification, link)
            self._on_notification(notification)

    def _forward(self, notification: Notification, source: _Link | None) -> None:
        """Send a notification to all launchers but the one that it comes from."""
        for link in [link for link in self._links if link is not source]:
            link.connection.put(MessageKind.EVENT, notification.to_json())
            self._flush(link)

    def _flush(self, link: _Link) -> None:
        try:
            link.connection.flush()
        except OSError as error:
            self._lose(link, error)
        else:
            self._watch(link)

    def _lose(self, link: _Link, error: Exception) -> None:
        """Give up a launcher. The ranks of its host are gone, or will be soon, and so are all hosts behind it."""
        if link not in self._links:
            return
        self._links.remove(link)
        self._loop.unwatch(link.connection.fileno())
        link.connection.close()
        reason = _explain_loss(error, link.hosts[0], self._keepalive)
        for host in link.hosts:
            if host not in link.gone:
                notification = Notification(host, events.AgentLost(host, reason))
                self._forward(notification, None)
                self._on_notification(notification)


def _explain_loss(error: Exception, host: str, keepalive: float) -> str:
    """Return why the connection with the launcher of a host has ended, as a sentence."""
    if isinstance(error, TimeoutError):
        return f"nothing was heard from {host} for {keepalive:g} s: the host or the network to it is gone"
    if isinstance(error, (ConnectionError, EOFError)):
        return f"the launcher on {host} is gone"
    return f"the connection with the launcher on {host} is broken: {error}"
