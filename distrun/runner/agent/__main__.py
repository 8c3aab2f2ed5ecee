"""The agent: one per host, started by the launcher; starts the host's ranks, relays their output, reports their ends.

`python -m distrun.runner.agent.__main__` reads its part of the plan as a frame from stdin and writes frames to stdout. It has
one thread and sleeps until something happens. When its stdin closes, the launcher is gone: it ends all its descendants
and leaves. It is a subreaper, so no descendant can escape from it.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from distrun.host.endpoints import reserve_port
from distrun.runner.agent.rank_process import Child, StartError, waiting_bytes
from distrun.runner.planning import environ
from distrun.runner.planning.plan import AgentPlan, RankPlan
from distrun.runner.protocol import handshake as hello
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import CHUNK, WINDOW, Frame, FrameDecoder, Kind
from distrun.runner.protocol.keepalive import Keepalive
from distrun.runner.system import descendants, machine
from distrun.runner.system.oom import OomCounter

_ORPHAN_GRACE = 2.0  # seconds between SIGTERM and SIGKILL when the launcher has vanished
_KILL_INTERVAL = 0.05  # seconds between two rounds of SIGKILL: a process may fork between being listed and being killed
_KILL_PATIENCE = 5.0  # seconds of such rounds before we say that a process cannot be killed


class Agent:
    """The loop of the agent and all its state."""

    def __init__(self, commands: int, reports: int) -> None:
        """Args: descriptors of the frames from and to the launcher."""
        self._commands = commands
        self._reports = reports
        self._selector = selectors.DefaultSelector()
        self._decoder = FrameDecoder()
        self._outgoing = bytearray()
        self._unacknowledged = 0
        self._paused = False
        self._launcher_lost = False
        self._function: int | None = None
        self._children: dict[int, Child] = {}  # by rank
        self._by_pid: dict[int, Child] = {}
        self._stdin_pending: dict[int, bytearray] = {}
        self._stdin_ended: set[int] = set()
        self._oom = OomCounter()
        self._keepalive: Keepalive | None = None
        self._ending: _Ending | None = None
        self._left = False

    def run(self) -> None:
        """Serve the launcher until all descendants are gone."""
        self._watch_launcher()
        self._watch_signals()
        while not self._left:
            clocks = [clock for clock in (self._ending, self._keepalive) if clock is not None]
            timeout = min((clock.seconds_left() for clock in clocks), default=None)
            for key, _ in self._selector.select(timeout):
                if key.fd in self._selector.get_map():  # an earlier callback may have closed it
                    key.data()
            self._update_reading()
            self._stay_in_touch()
            if self._ending is not None:
                self._end_descendants(self._ending)

    # --- what wakes the loop

    def _watch_launcher(self) -> None:
        os.set_blocking(self._commands, False)
        os.set_blocking(self._reports, False)
        self._selector.register(self._commands, selectors.EVENT_READ, self._read_commands)
        # A process the launcher's own program forked may hold our stdin open after the launcher's death.
        with suppress(OSError):
            self._selector.register(os.pidfd_open(os.getppid()), selectors.EVENT_READ, self._launcher_gone)

    def _watch_signals(self) -> None:
        self._wakeup, writer = socket.socketpair()
        self._wakeup.setblocking(False)
        writer.setblocking(False)
        self._wakeup_writer = writer  # kept open
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, lambda *_: None)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._read_signals)

    def _read_signals(self) -> None:
        received = self._wakeup.recv(4096)
        if any(signum != signal.SIGCHLD for signum in received):
            self._launcher_gone()  # first: who ends us, such as a batch scheduler, ends our ranks at the same time
        self._reap()

    def _read_commands(self) -> None:
        data = os.read(self._commands, 1 << 20)
        if not data:
            self._launcher_gone()
        if self._keepalive is not None:
            self._keepalive.heard()
        for frame in self._decoder.feed(data):
            self._obey(frame)

    def _stay_in_touch(self) -> None:
        """Between hosts a connection can be cut without either end being told."""
        if self._keepalive is None:
            return
        if self._keepalive.is_lost():
            self._launcher_gone()
        elif self._keepalive.is_due():
            self._send(Frame(Kind.KEEPALIVE))

    def _launcher_gone(self) -> None:
        """The launcher is dead, its connection is cut, or somebody asks us to leave: end everything."""
        self._launcher_lost = True
        self._keepalive = None
        for source in [key for key in self._selector.get_map().values() if key.data in self._launcher_callbacks()]:
            self._selector.unregister(source.fileobj)
        self._outgoing.clear()
        self._finish(_ORPHAN_GRACE)

    def _launcher_callbacks(self) -> tuple[Callable[[], None], ...]:
        return (self._read_commands, self._launcher_gone, self._flush)

    # --- what the launcher wants

    def _obey(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.HELLO:
                self._greet(hello.Greeting.from_json(frame.payload))
            case Kind.PLAN:
                self._start_ranks(AgentPlan.from_json(frame.payload))
            case Kind.FUNCTION:
                self._keep_function(frame.payload)
            case Kind.SIGNAL:
                for child in self._children.values():
                    child.signal(frame.as_int())
            case Kind.STDIN:
                self._take_stdin(frame)
            case Kind.ACK:
                self._unacknowledged -= frame.as_int()
            case Kind.FINISH:
                self._finish(frame.as_float())
            case Kind.KEEPALIVE:
                pass
            case _:
                raise ValueError(f"{frame.kind!r} is not for an agent")

    def _greet(self, greeting: hello.Greeting) -> None:
        self._outgoing += hello.MAGIC
        self._keeper = reserve_port()  # kept open
        self._send(Frame(Kind.HELLO, payload=hello.answer(greeting, self._keeper).to_json()))
        if greeting.keepalive:
            self._keepalive = Keepalive(greeting.keepalive)

    def _keep_function(self, piece: bytes) -> None:
        """Anonymous memory that every rank can read: no file, no name, nothing to clean up."""
        if self._function is None:
            self._function = os.memfd_create("distrun-function")
        with open(self._function, "ab", closefd=False) as memory:
            memory.write(piece)

    def _start_ranks(self, plan: AgentPlan) -> None:
        if plan.remote:
            plan = replace(
                plan, environ=environ.at_home(plan.environ, os.environ, machine.count_cores(), len(plan.ranks))
            )
        plan = replace(plan, environ={**plan.defaults, **plan.environ})
        if self._function is not None:
            plan = replace(plan, command=[sys.executable, str(Path(__file__).with_name("function_worker.py"))])
        for rank in plan.ranks:
            self._start_rank(plan, rank)

    def _start_rank(self, plan: AgentPlan, rank: RankPlan) -> None:
        try:
            child = Child(plan, rank, self._function)
        except StartError as error:
            self._send(Frame(Kind.NOT_STARTED, rank.rank, f"{error.status} {error}".encode()))
            return
        self._children[rank.rank] = self._by_pid[child.pid] = child
        for descriptor in child.sources:
            self._selector.register(descriptor, selectors.EVENT_READ, lambda fd=descriptor: self._relay(child, fd))
        self._send(Frame.number(Kind.STARTED, child.pid, rank.rank))

    # --- from the ranks to the launcher

    def _relay(self, child: Child, descriptor: int, limit: int = CHUNK) -> int:
        """Send on what can be read now; returns the bytes read, 0 when the pipe has ended or is empty."""
        try:
            data = os.read(descriptor, limit)
        except BlockingIOError:
            return 0
        kind = child.sources[descriptor]
        if data:
            self._send(Frame(kind, child.rank, data))
            self._unacknowledged += len(data) if kind is not Kind.RESULT else 0
        else:
            del child.sources[descriptor]
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            os.close(descriptor)
        return len(data)

    def _drain(self, child: Child) -> None:
        """Send on all that a dead rank has written, and no more: a process it left behind may write for ever."""
        for descriptor in list(child.sources):
            waiting = waiting_bytes(descriptor)
            while waiting > 0 and (count := self._relay(child, descriptor, min(waiting, CHUNK))):
                waiting -= count

    def _update_reading(self) -> None:
        """Stop reading from the ranks while the launcher has enough to print, go on when half of it is done."""
        load = max(self._unacknowledged, len(self._outgoing))
        if self._launcher_lost:
            load = 0
        if load >= WINDOW and not self._paused:
            self._paused = True
            for descriptor in self._sources():
                if descriptor in self._selector.get_map():
                    self._selector.unregister(descriptor)
        elif load <= WINDOW // 2 and self._paused:
            self._paused = False
            for descriptor, child in self._sources().items():
                self._selector.register(
                    descriptor, selectors.EVENT_READ, lambda fd=descriptor, child=child: self._relay(child, fd)
                )

    def _sources(self) -> dict[int, Child]:
        return {descriptor: child for child in self._children.values() for descriptor in child.sources}

    def _send(self, frame: Frame) -> None:
        if not self._launcher_lost:
            self._outgoing += frame.encode()
            self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._reports, self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # the launcher's end is closed
            self._launcher_gone()
            return
        registered = self._reports in self._selector.get_map()
        if self._outgoing and not registered:
            self._selector.register(self._reports, selectors.EVENT_WRITE, self._flush)
        elif registered and not self._outgoing:
            self._selector.unregister(self._reports)

    # --- from the launcher to a rank's stdin

    def _take_stdin(self, frame: Frame) -> None:
        child = self._children.get(frame.rank)
        if child is None or child.stdin is None:
            self._send(Frame.number(Kind.ACK, len(frame.payload), frame.rank))
            return
        if not frame.payload:
            self._stdin_ended.add(frame.rank)
        self._stdin_pending.setdefault(frame.rank, bytearray()).extend(frame.payload)
        if child.stdin not in self._selector.get_map():
            self._selector.register(child.stdin, selectors.EVENT_WRITE, lambda: self._write_stdin(child))

    def _write_stdin(self, child: Child) -> None:
        pending = self._stdin_pending[child.rank]
        assert child.stdin is not None
        try:
            written = os.write(child.stdin, pending) if pending else 0
        except BlockingIOError:
            return
        except OSError:  # nobody reads it any more
            written = len(pending)
            self._stdin_ended.add(child.rank)
        del pending[:written]
        if not pending:
            self._send(Frame.number(Kind.ACK, written, child.rank))
            self._selector.unregister(child.stdin)
            if child.rank in self._stdin_ended:
                child.close_stdin()

    # --- the end

    def _finish(self, grace: float) -> None:
        """Begin to end what is left; the second time, without grace, hurry."""
        if self._ending is None:
            self._ending = _Ending(grace)
        elif grace <= 0:
            self._ending.hurry()

    def _reap(self) -> bool:
        """Collect and report all that have died; returns whether any child is left."""
        ends: list[tuple[Child, int]] = []
        while (dead := descendants.reap()) is not None and dead != (0, 0):
            pid, returncode = dead
            child = self._by_pid.pop(pid, None)  # None: an adopted orphan
            if child is not None:
                child.reaped(returncode)
                ends.append((child, returncode))
        struck = any(returncode for _, returncode in ends) and self._oom.struck()
        exits = [(child, RankExit(returncode, struck and returncode != 0)) for child, returncode in ends]
        for child, rank_exit in sorted(exits, key=lambda item: item[1].innocence):
            self._drain(child)
            self._send(Frame(Kind.EXITED, child.rank, rank_exit.encode()))
        return dead is not None

    def _end_descendants(self, ending: _Ending) -> None:
        """One step of ending all that is left: SIGTERM once, SIGKILL again and again after the grace, then GONE."""
        if not self._reap():
            self._leave(ending, immortal=0)
        elif (signum := ending.due_signal()) is not None:
            ending.ended.update(descendants.signal_all(signum))
        elif ending.hopeless:
            self._leave(ending, immortal=len(descendants.signal_all(signal.SIGKILL)))

    def _leave(self, ending: _Ending, immortal: int) -> None:
        for child in self._children.values():
            self._drain(child)
            child.close()
        self._send(Frame(Kind.GONE, payload=b"%d %d" % (len(ending.ended), immortal)))
        os.set_blocking(self._reports, True)
        if not self._launcher_lost:
            self._flush()
        self._left = True


class _Ending:
    """When which signal is due to what is left."""

    def __init__(self, grace: float) -> None:
        now = time.monotonic()
        self.ended: set[int] = set()
        self._next = now
        self._signal = signal.SIGTERM if grace > 0 else signal.SIGKILL
        self._kill_at = now + grace
        self._give_up_at = now + grace + _KILL_PATIENCE

    def seconds_left(self) -> float:
        """Seconds until the next signal is due."""
        return max(0.0, self._next - time.monotonic())

    def due_signal(self) -> int | None:
        """The signal to send now, None when it is not the time."""
        now = time.monotonic()
        if now < self._next or self.hopeless:
            return None
        due = self._signal
        self._next = self._kill_at if due == signal.SIGTERM else now + _KILL_INTERVAL
        self._signal = signal.SIGKILL
        return due

    def hurry(self) -> None:
        """Send SIGKILL now."""
        now = time.monotonic()
        self._signal = signal.SIGKILL
        self._next = min(self._next, now)
        self._give_up_at = min(self._give_up_at, now + _KILL_PATIENCE)

    @property
    def hopeless(self) -> bool:
        """Whether SIGKILL has not helped for so long that it will not."""
        return time.monotonic() > self._give_up_at


def main() -> None:
    """Be an agent on this process's stdin and stdout."""
    descendants.set_subreaper()
    reports = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not get among the frames
    commands = os.dup(sys.stdin.fileno())
    Agent(commands, reports).run()


if __name__ == "__main__":
    main()
