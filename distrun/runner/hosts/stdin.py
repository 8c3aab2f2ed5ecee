"""The launcher's standard input on its way to one rank."""

from __future__ import annotations

import os
import signal
import threading

from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.protocol.frames import CHUNK


def forward(agent: AgentClient, rank: int, descriptor: int = 0) -> None:
    """Start a thread that passes what can be read from a descriptor, and its end, to a rank."""

    def pump() -> None:
        # In the background of a terminal, reading it would stop the launcher; with the signal blocked it fails.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
        while True:
            try:
                data = os.read(descriptor, CHUNK)
            except OSError:
                data = b""
            agent.send_stdin(rank, data)
            if not data:
                return

    # A daemon, which dies with the process: nothing can wake a thread that reads a terminal.
    threading.Thread(target=pump, name="distrun stdin", daemon=True).start()
