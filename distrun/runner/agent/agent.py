"""The agent itself: it executes the launcher's frames, starts and reaps the ranks, and leaves no process behind."""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distrun import __version__
from distrun.contract.launch import SHIPPED
from distrun.errors import BootstrapError, UsageError
from distrun.host.departures import Departures
from distrun.host.endpoints import PORTS, reserve_port
from distrun.runner.agent.cleanup.guard import Guard
from distrun.runner.agent.ending import Termination
from distrun.runner.agent.launcher_connection import LauncherConnection
from distrun.runner.agent.observation import Activities, Observation
from distrun.runner.agent.rank_process import RankProcess, StartError
from distrun.runner.agent.relay import Relay
from distrun.runner.planning.plan import AgentPlan, RankPlan
from distrun.runner.planning.variables.environ import complete_on_host
from distrun.runner.protocol import handshake
from distrun.runner.protocol.exits import RankExit
from distrun.runner.protocol.frames import Frame, FrameKind
from distrun.runner.system import descendants, machine
from distrun.runner.system.cpus import format_cpus
from distrun.runner.system.loop import Loop
from distrun.runner.system.oom import OomCounter

if TYPE_CHECKING:
    from distrun.host.sealing import Opener
    from distrun.runner.agent.elastic import ElasticProcesses
    from distrun.runner.agent.servers import Servers
    from distrun.runner.shipping.arrived import Arrived

_ORPHAN_GRACE = 2.0  # seconds between SIGTERM and SIGKILL when the launcher has vanished
_DELAY = 0.5  # seconds in which helpers of ranks that have ended may end, so that they do not count as left behind
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
_WORKER = str(Path(__file__).with_name("function_worker.py"))


class Agent:
    """One agent, from the first frame to the last."""

    def __init__(self, commands: int, reports: int) -> None:
        """Args: `commands` and `reports` are the descriptors of the frames from and to the launcher."""
        self._loop = Loop()
        self._launcher = LauncherConnection(self._loop, commands, reports, self._handle, self._launcher_lost)
        self._relay = Relay(self._loop, self._launcher)
        self._commands = commands
        self._function: int | None = None
        self._ranks: dict[int, RankProcess] = {}
        self._by_pid: dict[int, RankProcess] = {}
        self._oom = OomCounter()
        self._guard = Guard()
        self._ending: Termination | None = None
        self._elastic: ElasticProcesses | None = None
        self._servers: Servers | None = None
        self._departures: Departures | None = None
        self._is_outlived = False
        self._departed = 0
        self._left = False
        self._arrived: Arrived | None = None
        if SHIPPED in os.environ:
            from distrun.runner.shipping.arrived import Arrived

            self._arrived = Arrived.of(os.environ)
        self._activities = Activities(self._launcher)
        self._observation = Observation(
            self._launcher, lambda: [rank for rank in self._ranks.values() if not rank.is_server]
        )

    def run(self) -> None:
        """Execute the launcher's commands until the job is over and all descendants are gone."""
        self._loop.watch_signals((signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT), self._signalled)
        while not self._left:
            self._loop.run_once(self._timeout())
            self._relay.update_flow()
            self._launcher.stay_in_touch()
            self._observation.look()
            if self._elastic is not None:
                for number in self._elastic.tend():
                    del self._ranks[number]
            if self._ending is not None:
                self._end_descendants(self._ending)

    def _timeout(self) -> float | None:
        """Return the seconds until something is due, or None if nothing is."""
        ending = None if self._ending is None else self._ending.seconds_left(time.monotonic())
        elastic = None if self._elastic is None else self._elastic.seconds_left
        observation = self._observation.seconds_left
        due = (self._launcher.seconds_left, ending, elastic, observation)
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _signalled(self, signums: bytes) -> None:
        # Before reaping: a batch scheduler that signals the agent ends the ranks at the same time, and their exits must
        # not be reported as failures.
        if any(signum != signal.SIGCHLD for signum in signums):
            self._launcher.lose()
        self._reap()

    def _launcher_lost(self) -> None:
        # At once in an elastic job, which may begin its next world on other hosts: these ranks must not train beside
        # it. At once also for servers that are started again on other hosts: after SIGTERM, the servers here would
        # remove the copies that the new ones load.
        at_once = self._elastic is not None or (self._launcher.is_silent and self._is_outlived)
        self._finish(0.0 if at_once else _ORPHAN_GRACE)

    # --- commands of the launcher

    def _handle(self, frame: Frame) -> None:
        match frame.kind:
            case FrameKind.HELLO:
                self._greet(handshake.Greeting.from_json(frame.payload))
            case FrameKind.PLAN:
                self._start_ranks(AgentPlan.from_json(frame.payload))
            case FrameKind.START | FrameKind.END | FrameKind.RELEASE | FrameKind.CONTROL:
                self._change_processes(frame)
            case FrameKind.FUNCTION:
                self._keep_function(frame.payload)
            case FrameKind.SIGNAL:
                if frame.as_int() in _ENDING_SIGNALS:
                    self._activities.tell(self._ranks.values())
                for rank in self._ranks.values():
                    rank.signal(frame.as_int())
            case FrameKind.STDIN:
                self._relay.take_stdin(frame.process, frame.payload)
            case FrameKind.ACK:
                self._launcher.acknowledge(frame.as_int())
            case FrameKind.FINISH:
                self._finish(frame.as_float())
            case FrameKind.PAUSE:
                self._pause(frame.as_int())
            case FrameKind.RESUME:
                self._resume()
            case FrameKind.OBSERVE:
                self._observation.ask(frame.payload)
            case FrameKind.CLOCK:
                self._observation.answer_clock(frame.payload)
            case FrameKind.STACK:
                self._observation.ask_stacks(frame.process)
            case FrameKind.DEPARTED:
                if self._departures is not None:
                    self._departures.tell(frame.payload)
            case FrameKind.KEEPALIVE:
                pass
            case _:
                raise ValueError(f"{frame.kind!r} is not for an agent")

    def _greet(self, greeting: handshake.Greeting) -> None:
        if greeting.allowed_ports:
            os.environ[PORTS] = greeting.allowed_ports
        opener: Opener | None = None
        try:
            # Kept open until the agent exits.
            self._reservations = [reserve_port() for _ in range(1 + greeting.servers)]
            if self._arrived is not None:
                greeting = replace(greeting, wdir=self._arrived.here(greeting.wdir))
            info = handshake.describe_host(greeting, self._reservations[0], self._reservations[1:])
            if greeting.sealing:
                from distrun.runner.protocol.sealed_frames import answered

                public, credential, opener = answered(greeting)
                info = replace(info, sealing=public, credential=credential)
        except (UsageError, BootstrapError) as error:
            info = handshake.HostInfo(__version__, platform.python_version(), os.getpid(), problem=str(error))
        if opener is not None:
            self._launcher.open_with(opener)
        self._launcher.send_raw(handshake.MAGIC)
        self._launcher.send(Frame(FrameKind.HELLO, payload=info.to_json()))
        if greeting.keepalive:
            self._launcher.keep_alive(greeting.keepalive)

    def _pause(self, signum: int) -> None:
        """Stop the ranks. The launcher sends nothing before `_resume`, as it is suspended itself."""
        for rank in self._ranks.values():
            rank.signal(signum)
        self._launcher.pause_keepalive()
        self._launcher.send(Frame(FrameKind.PAUSED))

    def _resume(self) -> None:
        for rank in self._ranks.values():
            rank.signal(signal.SIGCONT)
        self._launcher.resume_keepalive()

    def _keep_function(self, piece: bytes) -> None:
        """Keep a piece of the function in a memfd that every rank can read, so that there is no file to clean up."""
        if self._function is None:
            self._function = os.memfd_create("distrun-function")
        with open(self._function, "ab", closefd=False) as memory:
            memory.write(piece)

    def _start_ranks(self, plan: AgentPlan) -> None:
        self._is_outlived = plan.is_outlived
        environs = (plan.environ, *(rank.environ for rank in (*plan.ranks, *plan.servers)))
        job = next((environ["DISTRUN_JOB"] for environ in environs if "DISTRUN_JOB" in environ), "")
        if plan.remote:
            cores = machine.count_cores()
            sharing = plan.room or len(plan.ranks) or 1
            plan = replace(plan, environ=complete_on_host(plan.environ, os.environ, cores, sharing))
        files = []
        if plan.room:
            from distrun.runner.system import scratch

            files = scratch.prefixes(plan.environ)
        self._guard.start({"DISTRUN_JOB": job, "DISTRUN_HOSTNAME": plan.host}, self._commands, files)
        plan = replace(plan, environ={**plan.defaults, **plan.environ, **self._guard.mark})
        self._departures = Departures() if job else None  # mpirun's ranks do not use it
        if self._function is not None:
            plan = replace(plan, command=[sys.executable, _WORKER])
        if self._arrived is not None:
            plan = self._arrived.adapted(plan)
        if plan.room:
            from distrun.runner.agent.elastic import ElasticProcesses

            self._elastic = ElasticProcesses(
                plan.environ["DISTRUN_JOB"],
                self._loop,
                self._launcher,
                self._relay,
                lambda rank: self._start_rank(plan, rank),
                lambda: self._guard.pids,
            )
        for rank in plan.ranks:
            self._start_rank(plan, rank)
        if plan.server_ports:
            from distrun.runner.agent.servers import Servers

            self._servers = Servers(plan, self._relay, self._start_rank)
            for server in plan.servers:
                self._servers.start(server, None)

    def _change_processes(self, frame: Frame) -> None:
        if self._servers is not None:
            server = RankPlan.from_json(frame.payload)
            self._servers.start(server, self._ranks.get(server.rank))
            return
        assert self._elastic is not None
        match frame.kind:
            case FrameKind.START:
                self._elastic.start(RankPlan.from_json(frame.payload))
            case FrameKind.END:
                self._elastic.end(frame.process, frame.as_float())
            case FrameKind.RELEASE:
                self._elastic.release(frame.process)
            case _:
                self._elastic.tell(frame.process, frame.payload)

    def _start_rank(self, plan: AgentPlan, rank_plan: RankPlan) -> RankProcess | None:
        if self._arrived is not None and rank_plan.command and not rank_plan.is_server:
            rank_plan = replace(rank_plan, command=self._arrived.command(rank_plan.command, plan))
        function, departures = (None, None) if rank_plan.is_server else (self._function, self._departures)
        try:
            rank = RankProcess(plan, rank_plan, function, departures)
        except StartError as error:
            self._launcher.send(Frame(FrameKind.NOT_STARTED, rank_plan.rank, f"{error.status} {error}".encode()))
            return None
        self._ranks[rank.number] = self._by_pid[rank.pid] = rank
        self._relay.add(rank)
        started = f"{rank.pid} {format_cpus(rank.cpus)}".rstrip()
        self._launcher.send(Frame(FrameKind.STARTED, rank.number, started.encode()))
        return rank

    # --- the end

    def _finish(self, grace: float) -> None:
        """Begin to end all descendants. A second call with a grace of 0 skips the rest of the grace."""
        if self._ending is None:
            may_have_daemons = grace > 0 and self._departed == len(self._ranks) > 0
            self._ending = Termination(grace, time.monotonic(), _DELAY if may_have_daemons else 0.0)
        elif grace <= 0:
            self._ending.skip_grace(time.monotonic())

    def _reap(self) -> bool:
        """Reap and report all processes that have died. Returns whether any descendant is left."""
        ends: list[tuple[RankProcess, int]] = []
        while (dead := descendants.reap()) is not None and dead != (0, 0):
            pid, returncode = dead
            rank = self._by_pid.pop(pid, None)  # None: an adopted orphan
            if rank is not None:
                rank.reaped(returncode)
                ends.append((rank, returncode))
        if any(returncode for _, returncode in ends):
            self._activities.tell(self._ranks.values())
        # The kernel's counter says that a process of the control group was killed, but not which one.
        out_of_memory = any(returncode for _, returncode in ends) and self._oom.has_risen()
        exits = [(rank, RankExit(returncode, out_of_memory and returncode != 0)) for rank, returncode in ends]
        for rank, rank_exit in sorted(exits, key=lambda item: item[1].root_cause_order):
            self._relay.drain(rank)
            self._observation.tell_events(rank)
            if rank_exit.returncode == 0 and rank.events is not None:
                told = rank.events
                alone = not (told.is_empty or told.has_exchanges)
                rank_exit = replace(rank_exit, has_departed=told.is_empty, worked_alone=alone)
                self._departed += told.is_empty
            if self._elastic is not None:
                self._elastic.drain(rank)
                rank_exit = replace(rank_exit, unasked=not self._elastic.is_ending(rank.number))
            self._launcher.send(Frame(FrameKind.EXITED, rank.number, rank_exit.encode()))
            if self._elastic is not None:
                self._elastic.exited(rank, rank_exit.returncode)
        return dead is not None

    def _end_descendants(self, ending: Termination) -> None:
        """Send the next signal to the descendants if it is due, and leave when they are gone."""
        now = time.monotonic()
        if not self._reap() or self._guard.is_alone():
            self._leave(ending, unkillable=0)
        elif (signum := ending.due_signal(now)) is not None:
            ending.ended.update(descendants.signal_all(signum, spare=self._guard.pids))
        elif ending.is_hopeless(now):
            self._leave(ending, unkillable=len(descendants.signal_all(signal.SIGKILL, spare=self._guard.pids)))

    def _leave(self, ending: Termination, unkillable: int) -> None:
        for rank in self._ranks.values():
            self._relay.drain(rank)
            rank.close()
        self._guard.dismiss()
        self._launcher.send(Frame(FrameKind.GONE, payload=b"%d %d" % (len(ending.ended), unkillable)))
        self._launcher.close()
        self._left = True
