"""The launcher's end of an agent: two streams, with a thread that reads one and a thread that writes the other.

Agents are started in different ways (`local`, `ssh`, `srun`, `joining`). To this module all are the same two streams.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import Empty, SimpleQueue
from typing import Protocol

from distrun.errors import LaunchError
from distrun.runner.decisions import events
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import CHUNK, WINDOW, Frame, FrameDecoder, FrameKind, split_payload
from distrun.runner.protocol.handshake import HostInfo
from distrun.runner.protocol.keepalive import PER_TIMEOUT

_OBSERVATIONS = (
    *(FrameKind.ACTIVITY, FrameKind.EVENTS, FrameKind.SAMPLE, FrameKind.GRADIENTS),
    *(FrameKind.CLOCK, FrameKind.STACK),
)


class UnresponsiveError(LaunchError):
    """An agent counts as gone because it sent nothing. `status` is the exit status of a job that ends for it."""

    status = 1


class AgentProcess(Protocol):
    """A started agent: the interface that each way of starting one implements."""

    keepalive: float | None
    """Seconds without a frame after which agent and launcher count each other as gone. None = never."""

    @property
    def host_info(self) -> HostInfo:
        """The addresses and ports of its host, which are looked up only when asked for: not every job needs them."""

    @property
    def pid(self) -> int:
        """The agent's process id, on its host."""

    def read(self) -> bytes:
        """Return the next bytes of the agent's frames, none when it is gone.

        Raises:
            LaunchError: it counts as gone.
        """

    def write(self, data: bytes) -> None:
        """Send frames to the agent. Raises OSError when it is gone."""

    def pause_keepalive(self) -> None:
        """Stop the keepalive timeout, because the launcher is about to be stopped. The agent does the same."""

    def resume_keepalive(self) -> None:
        """Restart the keepalive timeout, because the launcher continues."""

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end. Return how it ended, in words, and the exit status of a job that ends for it."""

    def kill(self) -> None:
        """End the agent at once."""

    def clean_up(self, pids: set[int]) -> None:
        """End the descendants that a dead agent has left, as far as they can be reached from here.

        Args:
            pids: the process ids that its ranks had.
        """

    def is_clean(self) -> bool:
        """Wait for the end of `clean_up` and return whether certainly nothing is left."""

    def close(self) -> None:
        """Close the streams."""


class AgentObserver(Protocol):
    """The callbacks for what agents report. The threads of `AgentClient` call them."""

    def output(self, agent: AgentClient, frame: Frame) -> None:
        """Handle output of a rank, and acknowledge it to the agent when it is printed."""

    def result(self, frame: Frame) -> None:
        """Handle a piece of a rank's result."""

    def control(self, agent: AgentClient, frame: Frame) -> None:
        """Handle what a process has sent on its control channel."""

    def observed(self, agent: AgentClient, frame: Frame) -> None:
        """Handle what an agent has observed of its ranks, or its host's clock."""

    def reports_lost_peer(self, rank: int) -> bool:
        """Whether the last lines of a rank's stderr report that it ended because it lost a peer."""

    def post(self, event: events.Event) -> None:
        """Pass an event to the thread that decides."""


class AgentClient:
    """One agent, with its two threads."""

    def __init__(self, host: str, process: AgentProcess, observer: AgentObserver) -> None:
        """
        Args:
            host: its host.
            process: the agent. This object owns it.
            observer: gets what the agent reports, after `start` was called.
        """
        self.host = host
        self.process = process
        self.pids: set[int] = set()
        """The process ids of the ranks that the agent has started."""
        self._observer = observer
        self._outbox: SimpleQueue[Frame | None] = SimpleQueue()
        self._unacknowledged = 0
        self._stdin_taken = threading.Semaphore()
        self._paused = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"distrun {target.__name__} {self.host}", daemon=True)
            for target in (self._read, self._write)
        ]

    def start(self) -> None:
        """Start reading and writing."""
        for thread in self._threads:
            thread.start()

    def start_ranks(self, plan: AgentPlan, function: bytes | None = None) -> None:
        """Send the agent its part of the plan, and the pickled function of `distrun.run` if there is one."""
        for piece in split_payload(FrameKind.FUNCTION, function or b""):
            self.send(piece)
        self.send(Frame(FrameKind.PLAN, payload=plan.to_json()))

    def send(self, frame: Frame) -> None:
        """Queue a frame for the agent, without blocking. A CLOCK frame gets the time when it is written."""
        self._outbox.put(frame)

    def acknowledge(self, count: int) -> None:
        """Acknowledge `count` bytes of printed output, many at a time. For one thread."""
        self._unacknowledged += count
        if self._unacknowledged >= WINDOW // 8:
            self.send(Frame.number(FrameKind.ACK, self._unacknowledged))
            self._unacknowledged = 0

    def forward_stdin(self, rank: int, descriptor: int = 0) -> None:
        """Start a thread that forwards what can be read from `descriptor`, and its end, to a rank."""

        def pump() -> None:
            # In the background of a terminal, reading it would stop the launcher. With the signal blocked, reading
            # fails.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
            while True:
                try:
                    data = os.read(descriptor, CHUNK)
                except OSError:
                    data = b""
                self._stdin_taken.acquire()  # until the rank has taken the last piece
                self.send(Frame(FrameKind.STDIN, rank, data))
                if not data:
                    return

        # A daemon thread ends with the process: nothing can wake a thread that reads a terminal.
        threading.Thread(target=pump, name="distrun stdin", daemon=True).start()

    def pause(self, signum: int) -> None:
        """Let the agent stop its ranks by a signal, and stop the keepalive timeout on both sides."""
        self._paused.clear()
        self.process.pause_keepalive()
        self.send(Frame.number(FrameKind.PAUSE, signum))

    def await_pause(self, timeout: float) -> bool:
        """Wait until the ranks are stopped, for `timeout` seconds at most. Return whether they are."""
        return self._paused.wait(timeout)

    def resume(self) -> None:
        """Undo `pause`."""
        self.send(Frame(FrameKind.RESUME))
        self.process.resume_keepalive()

    def kill(self) -> None:
        """End the agent at once. `clean_up` ends its descendants."""
        self.process.kill()

    def clean_up(self) -> None:
        """End the descendants that the agent has left."""
        self.process.clean_up(self.pids)

    def close(self) -> None:
        """Join the threads and close the streams of an agent that is dead."""
        self._outbox.put(None)
        for thread in self._threads:
            if thread.ident is not None:  # `start` may have failed
                thread.join()
        self.process.close()

    def _write(self) -> None:
        while (frame := self._next_frame()) is not None:
            if frame.kind is FrameKind.CLOCK:
                frame = Frame(FrameKind.CLOCK, payload=b"%d" % time.monotonic_ns())
            try:
                self.process.write(frame.encode())
            except OSError:  # the agent is gone, which the reading thread reports
                return

    def _next_frame(self) -> Frame | None:
        """Return the next frame to send, a KEEPALIVE frame if there is none for a while, or None at the end."""
        timeout = self.process.keepalive
        try:
            return self._outbox.get(timeout=None if timeout is None else timeout / PER_TIMEOUT)
        except Empty:
            return Frame(FrameKind.KEEPALIVE)

    def _read(self) -> None:
        decoder = FrameDecoder()
        end: events.Event | None = None
        try:
            while data := self.process.read():
                for frame in decoder.feed(data):
                    if frame.kind is FrameKind.GONE:
                        end = events.AgentGone(self.host, *map(int, frame.payload.split()))
                    else:
                        self._report(frame)
        except Exception as error:  # any at all: without an event the job would wait for this agent for ever
            self.process.kill()
            reason = str(error) if isinstance(error, LaunchError) else repr(error)
            status = error.status if isinstance(error, UnresponsiveError) else 1
            end = events.AgentLost(self.host, reason, status, was_silent=isinstance(error, UnresponsiveError))
        self._outbox.put(None)  # stops KEEPALIVE frames too, so that the agent notices that it was given up
        how, status = self.process.end_of_life()
        self._observer.post(end or events.AgentLost(self.host, f"the agent on {self.host} {how}", status))

    def _report(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.STDOUT | FrameKind.STDERR | FrameKind.TRACEBACK:
                self._observer.output(self, frame)
            case FrameKind.RESULT:
                self._observer.result(frame)
            case FrameKind.CONTROL:
                self._observer.control(self, frame)
            case kind if kind in _OBSERVATIONS:
                self._observer.observed(self, frame)
            case FrameKind.KEEPALIVE:
                pass
            case FrameKind.ACK:
                self._stdin_taken.release()
            case FrameKind.PAUSED:
                self._paused.set()
            case FrameKind.STARTED:
                pid, _, cpus = frame.payload.decode().partition(" ")
                self.pids.add(int(pid))
                self._observer.post(events.RankStarted(frame.process, int(pid), cpus))
            case FrameKind.NOT_STARTED:
                status, _, reason = frame.payload.decode(errors="replace").partition(" ")
                self._observer.post(events.RankNotStarted(frame.process, int(status), reason))
            case FrameKind.EXITED:
                end = RankExit.decode(frame.payload)
                lost_peer = end.returncode == 1 and self._observer.reports_lost_peer(frame.process)
                self._observer.post(events.RankExited(frame.process, end, lost_peer))
            case _:
                raise LaunchError(f"{frame.kind!r} is not for the launcher")
