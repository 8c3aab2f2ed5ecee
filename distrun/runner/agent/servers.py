"""The parameter servers of this host: processes of ours, and the memory that outlives them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import distrun
from distrun.contract.launch import SERVER_MEMORY
from distrun.runner.agent.rank_process import RankProcess
from distrun.runner.agent.relay import Relay
from distrun.runner.planning.plan import AgentPlan, RankPlan

_PROGRAM = str(Path(distrun.__file__).with_name("methods") / "servers" / "process.py")


class Servers:
    """Starts servers, and starts them again with what they had in memory.

    A server keeps its parameters in anonymous memory whose descriptor this agent holds, too. So they are still there
    when the server is not, and are gone with the agent. One that comes from a host that is lost begins with a copy.
    """

    def __init__(
        self, plan: AgentPlan, relay: Relay, start: Callable[[AgentPlan, RankPlan], RankProcess | None]
    ) -> None:
        """
        Args:
            plan: this host's part of the plan.
            relay: passes on what they write.
            start: starts a process, and reports that.
        """
        self._plan = plan
        self._relay = relay
        self._start = start
        self._servers: dict[int, RankPlan] = {}

    def start_all(self) -> None:
        """Start all servers of the host."""
        for server in self._plan.servers:
            self.start(server, None)

    def start(self, server: RankPlan, before: RankProcess | None) -> None:
        """Start a server, or start one again that is gone.

        Args:
            server: which.
            before: the process that it was; None = it is new on this host.
        """
        if before is not None:
            self._relay.remove(before)
        if server.rank not in self._servers:
            memory = os.memfd_create(f"distrun-server-{server.rank}")
            command = [sys.executable, _PROGRAM]
            environ = {**server.environ, SERVER_MEMORY: str(memory)}
            self._servers[server.rank] = replace(server, command=command, environ=environ, memory=memory)
        self._start(self._plan, self._servers[server.rank])
