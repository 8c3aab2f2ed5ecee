"""The messenger of a rank: one thread serves all connections, and the threads that send or receive wait for it.

The thread starts with the first message or receive. It sleeps in one poll on all connections. While a transfer is
pending it also checks, ten times a second, which ranks are gone.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from distrun.errors import JobAbortedError, StallError, UsageError
from distrun.host.connections.listener import Listener
from distrun.runtime.collectives.point_to_point.connection import ROOM, Connection
from distrun.runtime.collectives.point_to_point.delivery import Delivery
from distrun.runtime.collectives.point_to_point.departures import CHECK_INTERVAL, Departures
from distrun.runtime.collectives.point_to_point.dialing import RankListeners
from distrun.runtime.collectives.point_to_point.frames import FAREWELL, Frame
from distrun.runtime.collectives.point_to_point.peer import Peer, Peers
from distrun.runtime.collectives.point_to_point.transfer import Receive, Send, Transfer, group_number
from distrun.runtime.engine.engine import ProgressEngine
from distrun.runtime.engine.failing import SHUT_DOWN
from distrun.runtime.operations import waking_clock
from distrun.runtime.operations.timeouts import WaitTimer
from distrun.runtime.transport.network import CLOSE_TIMEOUT, REASON_TIMEOUT

log = logging.getLogger("distrun")

LEAVE_INTERVAL = 0.002
"""Seconds between checks whether everything has been sent, while this rank leaves: no event reports the last byte."""
_LINGER = 1.0  # seconds for which the thread keeps checking after the last transfer, so that the next need not wake it
_JOIN_TIMEOUT = 10.0  # seconds. A signal handler that calls `close` may have interrupted what the thread waits for


class Messenger:
    """Sends messages to the other ranks of a world and receives theirs. Any thread may use it."""

    def __init__(self, engine: ProgressEngine, rank: int, size: int) -> None:
        """Nothing is visible to other processes before `prepare` or the first message."""
        self._engine = engine
        local_group = engine.local_group
        self._timeouts = local_group.timeouts
        self._condition = threading.Condition(threading.RLock())
        """Held to change anything. Notified when a transfer has ended."""
        self._ended: list[Transfer] = []
        self._failure: str | None = None
        self._until = float("inf")
        """The deadline for leaving, by the waking clock (inf while this rank stays)."""
        self._is_over = False
        self._is_asleep = False  # whether the thread sleeps without a timeout, and must be woken
        self._stays_awake_until = 0.0
        self._peers = Peers(rank, size)
        self._delivery = Delivery(self._peers, local_group.describe_rank, rank, self._note_end)
        self._departures = Departures(engine, self._peers, self._delivery)
        # Sockets and not descriptors: a thread may call `_wake` while another closes them, and a closed socket object
        # raises, where the number of a closed descriptor may already be another file.
        self._wakers = socket.socketpair()
        self._epoll = select.epoll()
        for end in self._wakers:
            end.setblocking(False)
        self._epoll.register(self._wakers[0], select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._room = memoryview(bytearray(ROOM))
        self._dialing = RankListeners(rank, local_group)
        self._listeners: dict[int, Listener] = {}
        self._thread: threading.Thread | None = None
        engine.watch(self._wake)

    # For callers ------------------------------------------------------------------------------------------------------

    def prepare(self, tell: Callable[[int], Sequence[int]]) -> None:
        """Let ranks of other hosts connect with this one. All ranks call this together. A second call does nothing.

        Args:
            tell: sends this rank's port to all ranks, and returns the ports of all by rank.
        """
        if self._dialing.ports:
            return
        with self._locked():
            listener = self._dialing.listen_to_hosts()
            self._hear(listener)
        self._dialing.ports = tell(0 if listener is None else listener.endpoints[0][1])

    def send(self, send: Send) -> Send:
        """Start to send a message. Never waits. Its memory must not change before the end of the transfer.

        Raises:
            JobAbortedError: the job has failed, or this rank has shut down.
        """
        with self._locked():
            peer = self._peers[send.destination]
            if not self._dialing.can_reach(peer.rank):
                raise UsageError(f"rank {peer.rank} is on another host: let all ranks call `messages.prepare` before")
            self._begin(send)
            self._delivery.send(send)
            if peer.waiting and not peer.is_dialed:
                self._dialing.dial(peer, self._attach)
        return send

    def receive(self, receive: Receive) -> Receive:
        """Start to receive a message. Never waits. Raises as `send` does."""
        with self._locked():
            self._begin(receive)
            self._delivery.receive(receive)
        return receive

    def leave(self, group: str) -> None:
        """Leave a group for good. Its name must not be used again in this world."""
        with self._locked():
            self._delivery.leave(group_number(group))

    def wait(self, transfer: Transfer, timeout: float | None) -> None:
        """Wait until a transfer has ended (see `Transfer.wait`)."""
        if threading.current_thread() is self._thread:
            raise UsageError("a callback of a message cannot wait for another one: let it start what is to follow")
        self._wait(transfer, float("inf") if timeout is None else timeout)

    def when_done(self, transfer: Transfer, callback: Callable[[], None]) -> None:
        """Call `callback` at the end of a transfer (see `Transfer.when_done`)."""
        with self._condition:
            if not transfer.done:
                transfer.callbacks.append(callback)
                return
        callback()

    def _wait(self, transfer: Transfer, timeout: float) -> None:
        def what() -> str:
            return self._delivery.waiting_for(transfer)

        timer = WaitTimer(self._timeouts, what, None, waking_clock.now)
        until = waking_clock.now() + timeout
        began, slept = time.monotonic(), 0.0
        with self._locked():
            while not transfer.done:
                try:
                    now = waking_clock.now()
                    began = waking_clock.note_sleep(began, slept)
                    now = min(now, waking_clock.now())  # a stop (SIGSTOP) in this sleep or since counts for nothing
                    if now >= until:
                        raise StallError(f"gave up after {round(now - transfer.began, 1):g} s: {what()}")
                    due = min(timer.look(now), until, now + 60.0)
                except StallError as error:
                    self._delivery.withdraw(transfer, error)
                    break
                slept = due - now
                self._condition.wait(slept)

    # Under the lock ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock. After releasing it, call the callbacks of the transfers that have ended meanwhile."""
        ended: list[Transfer] = []
        try:
            with self._condition:
                try:
                    yield
                finally:
                    if self._ended:
                        ended, self._ended = self._ended, ended
                        self._condition.notify_all()
        finally:
            for transfer in ended:
                _call_back(transfer)

    def _note_end(self, transfer: Transfer, error: Exception | None) -> None:
        transfer.ended(error)
        self._ended.append(transfer)

    def _begin(self, transfer: Transfer) -> None:
        """Begin a transfer: start or wake the thread."""
        transfer.owner, transfer.began = self, waking_clock.now()
        failure = self._failure or self._engine.failure
        if failure is not None:
            raise JobAbortedError(f"{self._delivery.title(transfer)}: {failure}")
        if self._thread is None:
            self._hear(self._dialing.listen_to_host())
            self._thread = threading.Thread(target=self._run, name="distrun messages", daemon=True)
            self._thread.start()
        elif self._is_asleep:
            self._is_asleep = False
            self._wake()

    def _hear(self, listener: Listener | None) -> None:
        """Accept connections at a listener. None means that there are no ranks that could connect."""
        if listener is not None:
            self._listeners[listener.fileno()] = listener
            self._epoll.register(listener.fileno(), select.EPOLLIN)

    def _wake(self) -> None:
        """Wake the thread. Any thread may call this."""
        with suppress(OSError):  # the buffer is full, so it wakes up anyway, or the socket is closed
            self._wakers[1].send(b"!")

    def _attach(self, peer: Peer, connection: socket.socket) -> None:
        """Use a new connection with a peer, or close it if it is too late for one."""
        with self._locked():
            if self._is_over or self._failure is not None or peer.lost is not None:
                connection.close()
                return
            made = Connection(peer.rank, connection, self._epoll, self._delivery, self._room)
            self._connections[made.fd] = made
            peer.attach(made)

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            reason = f"the message thread failed: {type(error).__name__}: {error}"
            log.error("%s", reason, exc_info=error)
            with self._locked():
                self._fail(reason)
        finally:
            self._clean_up()

    def _turn(self) -> bool:
        """Wait for events and handle them once. Returns False when the thread must end."""
        with self._locked():
            reason = self._departures.look()
            if reason is not None and self._failure is None:
                self._fail(reason)
            is_leaving = self._until < float("inf")
            if is_leaving and self._leave():
                return False
            now = waking_clock.now()
            if self._departures.matter:
                self._stays_awake_until = now + _LINGER
            self._is_asleep = not is_leaving and now >= self._stays_awake_until
            timeout = None if self._is_asleep else LEAVE_INTERVAL if is_leaving else CHECK_INTERVAL
        events = self._epoll.poll(timeout)
        with self._locked():
            self._is_asleep = False
            for fd, mask in events:
                self._handle(fd, mask)
        return True

    def _handle(self, fd: int, mask: int) -> None:
        if fd == self._wakers[0].fileno():
            with suppress(BlockingIOError):
                self._wakers[0].recv(4096)
        elif fd in self._listeners:
            while (client := self._listeners[fd].receive(0)) is not None:
                made, introduction = client
                rank = introduction.get("rank")
                if not isinstance(rank, int) or not self._peers.has(rank):
                    made.close()
                else:
                    self._dialing.tune(made)
                    self._attach(self._peers[rank], made)
        elif (connection := self._connections.get(fd)) is not None:
            if mask & select.EPOLLOUT:
                connection.flush()
            if mask & ~select.EPOLLOUT:
                connection.receive()
            if connection.is_closed:
                del self._connections[fd]

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._delivery.fail(reason)

    # The end ----------------------------------------------------------------------------------------------------------

    def close(self, is_hurried: bool) -> None:
        """Fail this rank's receives, finish its sends, and end the thread.

        Args:
            is_hurried: whether sends may be cut off after a short time, because the job has failed for example.
        """
        with self._locked():
            for receive in list(self._delivery.matching.posted()):
                self._delivery.withdraw(receive, JobAbortedError(f"{self._delivery.title(receive)}: {SHUT_DOWN}"))
            is_hurried = is_hurried or self._failure is not None
            self._until = waking_clock.now() + (REASON_TIMEOUT if is_hurried else CLOSE_TIMEOUT)
        self._wake()
        thread = self._thread
        if thread is None:
            self._clean_up()
        elif thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT + _JOIN_TIMEOUT)

    def _leave(self) -> bool:
        """Say farewell to all peers. Returns whether all messages have been sent or the time is over."""
        for peer in self._peers.values():
            if peer.connections and not peer.is_told:
                peer.is_told = True
                peer.put(Frame(FAREWELL).pack())
        is_under_way = any(peer.is_under_way for peer in self._peers.values())
        return not is_under_way or self._failure is not None or waking_clock.now() >= self._until

    def _clean_up(self) -> None:
        """Close everything. Transfers that have not ended fail."""
        self._engine.watch(lambda: None)
        with self._locked():
            self._is_over = True
            self._fail(SHUT_DOWN)
        self._dialing.close()
        self._epoll.close()
        for end in self._wakers:
            end.close()
        # A caller that keeps a transfer must not keep the memory of a world that is over alive.
        self._delivery.forget_names()
        del self._engine, self._departures

    def disown(self) -> None:
        """Close a forked child's copies. The messenger must not be used there."""
        for connection in self._connections.values():
            if not connection.is_closed:
                connection.disown()
        self._dialing.disown()
        self._epoll.close()
        for end in self._wakers:
            end.close()


def _call_back(transfer: Transfer) -> None:
    callbacks, transfer.callbacks = transfer.callbacks, []  # they may keep the transfer's memory alive
    for callback in callbacks:
        try:
            callback()
        except Exception:
            log.exception("a callback of a message failed")
