"""The parameter servers of this host: their processes, and the memory that outlives these."""

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
    """Starts servers, and restarts them with the parameters that they had in memory.

    A server keeps its parameters in a memfd whose descriptor this agent holds, too. So the parameters outlive the
    server, but not the agent. A server that moves here from a lost host starts from a copy in a file.
    """

    def __init__(
        self, plan: AgentPlan, relay: Relay, start: Callable[[AgentPlan, RankPlan], RankProcess | None]
    ) -> None:
        """`start` starts a process, and reports it to the launcher."""
        self._plan = plan
        self._relay = relay
        self._start = start
        self._servers: dict[int, RankPlan] = {}

    def start(self, server: RankPlan, before: RankProcess | None) -> None:
        """Start a server, or restart one that is gone: `before` is its previous process, if it was on this host."""
        if before is not None:
            self._relay.remove(before)
        if server.rank not in self._servers:
            memory = os.memfd_create(f"distrun-server-{server.rank}")
            command = [sys.executable, _PROGRAM]
            environ = {**server.environ, SERVER_MEMORY: str(memory)}
            self._servers[server.rank] = replace(server, command=command, environ=environ, memory=memory)
        self._start(self._plan, self._servers[server.rank])
