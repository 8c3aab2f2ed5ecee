"""The agent of this host: a child process, whose orphans this process adopts."""

from __future__ import annotations

import functools
import socket
from dataclasses import replace

from distrun.host.endpoints import reserve_port
from distrun.runner.hosts.program import AGENT, LocalProgram
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol import handshake
from distrun.runner.protocol.exits import signal_name
from distrun.runner.protocol.handshake import Greeting, HostInfo
from distrun.runner.system import descendants


class LocalAgentProcess:
    """An agent on this host; see `distrun.runner.hosts.agent_client.AgentProcess` for the interface."""

    keepalive: float | None = None

    def __init__(self, plan: AgentPlan, marker: str | None) -> None:
        """Start it.

        Args:
            plan: its part of the plan. It is not handed over here; the agent reads it from its stdin.
            marker: `NAME=VALUE` that our descendants have in their environment, for a process that has other children
                too; None when all children but those there are already are ours.

        Raises:
            LaunchError: this Python cannot be started.
        """
        self._greeting = Greeting(0.0, plan.wdir, plan.ports, servers=plan.server_ports)
        self._reservations: list[socket.socket] = []
        self._spare = set() if marker else descendants.children()
        self._marker = marker
        self._program = LocalProgram(AGENT)
        self._is_clean = False
        self._scratch_environ = plan.environ if plan.room else {}  # only processes of elastic jobs have such folders

    @functools.cached_property
    def host_info(self) -> HostInfo:
        """The addresses and ports of this host; this process reserves those for the rendezvous and for servers."""
        for _ in range(1 + self._greeting.servers):
            self._reservations.append(reserve_port())
        first, *others = self._reservations
        return replace(handshake.describe_host(self._greeting, first, others), pid=self.pid)

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._program.pid

    def read(self) -> bytes:
        """Return the next bytes of its frames, none at their end."""
        return self._program.read(None)

    def write(self, data: bytes) -> None:
        """Send frames to the agent."""
        self._program.write(data)

    def pause_keepalive(self) -> None:
        """Nothing to do: it may be silent for as long as it likes."""

    def resume_keepalive(self) -> None:
        """So is there here."""

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end."""
        code = self._program.wait()
        if code < 0:
            return f"(pid {self.pid}) was killed by {signal_name(-code)}", 128 - code
        return f"(pid {self.pid}) ended unexpectedly with exit code {code}", code or 1

    def kill(self) -> None:
        """SIGKILL the agent; the kernel does the same to its ranks."""
        self._program.kill()

    def clean_up(self, pids: set[int]) -> None:
        """End the dead agent's descendants, which this process has adopted as their subreaper."""
        self._is_clean = descendants.end_all(pids, self._spare, self._marker)
        if self._is_clean:
            self._remove_files()

    def _remove_files(self) -> None:
        if self._scratch_environ:
            from distrun.runner.system import scratch

            scratch.remove_all(self._scratch_environ)

    def is_clean(self) -> bool:
        """Return whether `clean_up` has found nothing more in the end."""
        return self._is_clean

    def close(self) -> None:
        """Close the pipes and the reservations of ports."""
        for reservation in self._reservations:
            reservation.close()
        self._program.close()
