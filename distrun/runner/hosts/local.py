"""The agent of this host: a child process. This process adopts the processes that a dead agent leaves."""

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
    """An agent on this host. See `distrun.runner.hosts.agent_client.AgentProcess` for the interface."""

    keepalive: float | None = None

    def __init__(self, plan: AgentPlan, marker: str | None) -> None:
        """Start the agent.

        Args:
            plan: its part of the plan. The agent gets it later, from its stdin.
            marker: `NAME=VALUE` in the environment of the agent's descendants, so that `clean_up` finds them in a
                process that has other children too. None = all children that do not exist yet are the agent's.

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
        """The addresses and ports of this host. This process reserves the ports of the rendezvous and of servers."""
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
        """Do nothing: an agent of this host has no keepalive timeout."""

    def resume_keepalive(self) -> None:
        """Do nothing. See `pause_keepalive`."""

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end."""
        code = self._program.wait()
        if code < 0:
            return f"(pid {self.pid}) was killed by {signal_name(-code)}", 128 - code
        return f"(pid {self.pid}) ended unexpectedly with exit code {code}", code or 1

    def kill(self) -> None:
        """Kill the agent by SIGKILL. The kernel does the same to its ranks."""
        self._program.kill()

    def clean_up(self, pids: set[int]) -> None:
        """End the dead agent's descendants, which this process has adopted as their subreaper."""
        self._is_clean = descendants.end_all(pids, self._spare, self._marker)
        if self._is_clean and self._scratch_environ:
            from distrun.runner.system import scratch

            scratch.remove_all(self._scratch_environ)

    def is_clean(self) -> bool:
        """Return whether `clean_up` has left nothing."""
        return self._is_clean

    def close(self) -> None:
        """Close the pipes, and free the ports."""
        for reservation in self._reservations:
            reservation.close()
        self._program.close()
