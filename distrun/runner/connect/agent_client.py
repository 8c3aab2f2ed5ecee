"""An agent as the launcher sees it: two streams, a thread that reads one and a thread that writes the other.

How an agent comes to life differs (`local_agent.py`, `ssh_agent.py`, `srun_agent.py`); from then on all are the same pair
of streams.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import Protocol

from distrun.errors import LaunchError
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import WINDOW, Frame, FrameDecoder, FrameKind, split_payload
from distrun.runner.protocol.handshake import HostInfo
from distrun.runner.protocol.keepalive import PER_SILENCE
from distrun.runner.supervision import events


class AgentProcess(Protocol):
    """A started agent: the one interface that each way of starting one implements."""

    keepalive: float | None
    """Seconds without a word after which the agent is given up, and gives us up; None = it cannot be cut off."""

    @property
    def host_info(self) -> HostInfo:
        """What it says of its host. That of this host looks only when asked, as not every job needs to know."""

    @property
    def pid(self) -> int:
        """The agent's process id, on its host."""

    def read(self) -> bytes:
        """The next bytes of the agent's frames; none when it is gone.

        Raises:
            LaunchError: it counts as gone.
        """

    def write(self, data: bytes) -> None:
        """Send the agent frames, all of these bytes; raises OSError when it is gone."""

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end; returns how it ended in words, and the exit status that stands for it."""

    def kill(self) -> None:
        """End the agent at once."""

    def clean_up(self, pids: set[int]) -> None:
        """End what is left of a dead agent's descendants, as far as they can be reached from here.

        Args:
            pids: the process ids its ranks had.
        """

    def close(self) -> None:
        """Close the streams."""


class AgentObserver(Protocol):
    """Who is told what ranks say and become."""

    def output(self, agent: AgentClient, frame: Frame) -> None:
        """A rank has written something; whoever deals with it acknowledges it to the agent."""

    def result(self, frame: Frame) -> None:
        """A piece of a rank's result."""

    def reports_lost_peer(self, rank: int) -> bool:
        """Whether the rank's last words say that it ended for the loss of a peer."""

    def post(self, event: events.Event) -> None:
        """Something the decider must know."""


class AgentClient:
    """The launcher's end of one agent."""

    def __init__(self, host: str, process: AgentProcess, observer: AgentObserver) -> None:
        """Takes over the process; the threads start with `start`."""
        self.host = host
        self.process = process
        self.pids: set[int] = set()
        """Process ids of the ranks it has started."""
        self._observer = observer
        self._outbox: SimpleQueue[Frame | None] = SimpleQueue()
        self._unacknowledged = 0
        self._stdin_taken = threading.Semaphore()
        self._threads = [
            threading.Thread(target=target, name=f"distrun {target.__name__} {self.host}", daemon=True)
            for target in (self._read, self._write)
        ]

    def start(self) -> None:
        """Begin to listen and to speak."""
        for thread in self._threads:
            thread.start()

    def start_ranks(self, plan: AgentPlan, function: bytes | None = None) -> None:
        """Hand the agent its part of the plan, and the pickled function of `distrun.run` if there is one."""
        for piece in split_payload(FrameKind.FUNCTION, function or b""):
            self.send(piece)
        self.send(Frame(FrameKind.PLAN, payload=plan.to_json()))

    def send(self, frame: Frame) -> None:
        """Have a frame written to the agent; never blocks."""
        self._outbox.put(frame)

    def acknowledge(self, count: int) -> None:
        """Some output has been dealt with. For one thread; tells the agent only when it has become worth a frame."""
        self._unacknowledged += count
        if self._unacknowledged >= WINDOW // 8:
            self.send(Frame.number(FrameKind.ACK, self._unacknowledged))
            self._unacknowledged = 0

    def send_stdin(self, rank: int, data: bytes) -> None:
        """Pass on a piece of standard input, none meaning its end; blocks until the rank has taken the piece before."""
        self._stdin_taken.acquire()
        self.send(Frame(FrameKind.STDIN, rank, data))

    def kill(self) -> None:
        """End the agent at once; its descendants are `clean_up`'s business."""
        self.process.kill()

    def clean_up(self) -> None:
        """End what is left of the agent's descendants."""
        self.process.clean_up(self.pids)

    def close(self) -> None:
        """Forget the agent, which must be dead: join the threads and close the streams."""
        self._outbox.put(None)
        for thread in self._threads:
            thread.join()
        self.process.close()

    def _write(self) -> None:
        while (frame := self._next_frame()) is not None:
            try:
                self.process.write(frame.encode())
            except OSError:  # the agent is gone; the reader tells
                return

    def _next_frame(self) -> Frame | None:
        """What to send next; when there is nothing for a while, a sign of life."""
        silence = self.process.keepalive
        try:
            return self._outbox.get(timeout=None if silence is None else silence / PER_SILENCE)
        except Empty:
            return Frame(FrameKind.KEEPALIVE)

    def _read(self) -> None:
        decoder = FrameDecoder()
        farewell: events.Event | None = None
        try:
            while data := self.process.read():
                for frame in decoder.feed(data):
                    if frame.kind is FrameKind.GONE:
                        farewell = events.AgentGone(self.host, *map(int, frame.payload.split()))
                    else:
                        self._report(frame)
        except Exception as error:  # whatever it is, a reader that dies in silence would leave the job hanging
            self.process.kill()
            farewell = events.AgentLost(self.host, str(error) if isinstance(error, LaunchError) else repr(error))
        how, status = self.process.end_of_life()
        self._observer.post(farewell or events.AgentLost(self.host, f"the agent on {self.host} {how}", status))

    def _report(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.STDOUT | FrameKind.STDERR:
                self._observer.output(self, frame)
            case FrameKind.RESULT:
                self._observer.result(frame)
            case FrameKind.KEEPALIVE:
                pass
            case FrameKind.ACK:
                self._stdin_taken.release()
            case FrameKind.STARTED:
                self.pids.add(frame.as_int())
                self._observer.post(events.RankStarted(frame.rank, frame.as_int()))
            case FrameKind.NOT_STARTED:
                status, _, reason = frame.payload.decode(errors="replace").partition(" ")
                self._observer.post(events.RankNotStarted(frame.rank, int(status), reason))
            case FrameKind.EXITED:
                end = RankExit.decode(frame.payload)
                lost_peer = end.returncode == 1 and self._observer.reports_lost_peer(frame.rank)
                self._observer.post(events.RankExited(frame.rank, end, lost_peer))
            case _:
                raise LaunchError(f"{frame.kind!r} is not for the launcher")
