"""The launchers of the other nodes while the job runs: what happens on a node becomes known on all of them.

The node that has hosted the rendezvous passes on what it hears. A launcher whose connection ends before it has said
that its agent is gone has vanished, and its ranks with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

from distrun.host.connections.listener import Listener
from distrun.runner.decisions import events
from distrun.runner.hosts.nodes.connection import Connection, in_words
from distrun.runner.hosts.nodes.messages import News, is_told
from distrun.runner.hosts.nodes.server import dismiss, newcomers
from distrun.runner.system.loop import WRITE, Loop

_LAST_MESSAGES_TIMEOUT = 2.0  # seconds in which another launcher takes what we have still to say


@dataclass(eq=False)
class _Link:
    """A connection with a launcher, and the hosts that are heard of through it."""

    connection: Connection
    hosts: list[str]
    gone: set[str] = field(default_factory=set)
    """The hosts whose agents have left in an orderly way."""


class Peers:
    """The other nodes, in a thread of their own."""

    def __init__(
        self, here: str, connections: Mapping[str, Connection], others: Iterable[str], listener: Listener | None = None
    ) -> None:
        """
        Args:
            here: our own host.
            connections: those with other launchers, by host; this object closes them.
            others: the hosts of all other nodes. Those without a connection are heard of through the only one.
            listener: where nodes may still come, to be told that it is too late; this object closes it.
        """
        self.here = here
        self._links = [_Link(connection, [host]) for host, connection in connections.items()]
        if len(self._links) == 1:
            self._links[0].hosts += [host for host in others if host not in connections]
        self._listener = listener
        self._queue: SimpleQueue[News | threading.Event | None] = SimpleQueue()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._hear: Callable[[News], None] = lambda news: None
        self._closing = self._is_closed = False
        self._loop = Loop()
        self._thread = threading.Thread(target=self._run, name="distrun nodes", daemon=True)

    def keep_alive(self, keepalive: float) -> None:
        """Give another launcher up after so many seconds of silence, or never if they are 0; call it before `start`."""
        for link in self._links:
            link.connection.keep_alive(keepalive)

    def start(self, hear: Callable[[News], None]) -> None:
        """Begin to listen; `hear` is called, by the thread, with what happens elsewhere."""
        self._hear = hear
        self._thread.start()

    def tell(self, event: events.Event, last_words: bytes = b"") -> None:
        """Tell the other nodes what has happened here, before `close`. What concerns nobody else is not told."""
        if isinstance(event, events.SignalReceived):
            event = replace(event, host=self.here)
        if is_told(event) and not self._is_closed:
            self._post(News(self.here, event, last_words))

    def await_told(self) -> None:
        """Return when what has been told is on its way to the other nodes, or after two seconds."""
        done = threading.Event()
        self._post(done)
        done.wait(_LAST_MESSAGES_TIMEOUT)

    def close(self) -> None:
        """Say what is still to be said, and leave. Twice does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.ident is None:  # the job has never begun
            self._closing = True
            self._run()
        else:
            self._post(None)
            self._thread.join()

    def _post(self, news: News | threading.Event | None) -> None:
        self._queue.put(news)
        os.eventfd_write(self._wakeup, 1)

    # --- the thread

    def _run(self) -> None:
        self._loop.watch(self._wakeup, self._take_orders)
        if self._listener is not None:
            self._loop.watch(self._listener.fileno(), self._turn_away)
        for link in self._links:
            self._watch(link)
        while not self._closing:
            self._loop.run_once(None)
        for link in self._links:
            link.connection.close(_LAST_MESSAGES_TIMEOUT)
        if self._listener is not None:
            self._listener.close()
        self._loop.close()
        os.close(self._wakeup)

    def _watch(self, link: _Link) -> None:
        self._loop.watch(link.connection.fileno(), lambda: self._receive(link))

    def _take_orders(self) -> None:
        os.eventfd_read(self._wakeup)
        while True:
            try:
                news = self._queue.get_nowait()
            except Empty:
                return
            if news is None:
                self._closing = True
            elif isinstance(news, threading.Event):
                news.set()
            else:
                self._pass_on(news, None)

    def _turn_away(self) -> None:
        assert self._listener is not None
        for connection, node in newcomers(self._listener):
            dismiss(connection, f"the job has begun without {node.name}, with all the nodes that it may have")

    def _receive(self, link: _Link) -> None:
        try:
            heard = [News.from_json(message) for message in link.connection.receive()]
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._lose(link, error)
            return
        for news in heard:
            if isinstance(news.event, events.AgentGone):
                link.gone.add(news.host)
            self._pass_on(news, link)
            self._hear(news)

    def _pass_on(self, news: News, source: _Link | None) -> None:
        """Send news to all launchers but the one that it comes from."""
        for link in [link for link in self._links if link is not source]:
            try:
                link.connection.send(news.to_json())
                self._flush_later(link)
            except OSError as error:
                self._lose(link, error)

    def _flush_later(self, link: _Link) -> None:
        """Send what the kernel does not take now when it can; it takes news as a rule, which are short and few."""
        if link.connection.wants_to_send:
            self._loop.unwatch(link.connection.fileno())
            self._loop.watch(link.connection.fileno(), lambda: self._flush(link), WRITE)

    def _flush(self, link: _Link) -> None:
        try:
            link.connection.flush()
        except OSError as error:
            self._lose(link, error)
            return
        if not link.connection.wants_to_send:
            self._loop.unwatch(link.connection.fileno())
            self._watch(link)

    def _lose(self, link: _Link, error: Exception) -> None:
        """Give up a launcher: the ranks of its host are gone, or about to be, and so is what was heard through it."""
        if link not in self._links:
            return
        self._links.remove(link)
        self._loop.unwatch(link.connection.fileno())
        link.connection.close()
        for host in link.hosts:
            if host not in link.gone:
                news = News(host, events.AgentLost(host, in_words(error, link.hosts[0], link.connection.keepalive)))
                self._pass_on(news, None)
                self._hear(news)
