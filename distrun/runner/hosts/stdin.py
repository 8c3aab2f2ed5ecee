"""Forwarding the launcher's standard input to one rank."""

from __future__ import annotations

import os
import signal
import threading

from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.protocol.frames import CHUNK


def forward(agent: AgentClient, rank: int, descriptor: int = 0) -> None:
    """Start a thread that forwards what can be read from `descriptor`, and its end, to `rank`."""

    def pump() -> None:
        # In the background of a terminal, reading it would stop the launcher. With the signal blocked, reading fails.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTIN])
        while True:
            try:
                data = os.read(descriptor, CHUNK)
            except OSError:
                data = b""
            agent.send_stdin(rank, data)
            if not data:
                return

    # A daemon thread ends with the process: nothing can wake a thread that reads a terminal.
    threading.Thread(target=pump, name="distrun stdin", daemon=True).start()
