"""Suspension: Ctrl-Z stops the ranks, on all hosts, and then the launcher; SIGCONT, as by `fg`, lets all go on.

The terminal's SIGTSTP reaches the launcher alone, for each rank has a session of its own. SIGTSTP would stop no rank
either, so the agents send SIGSTOP. Agents and launcher know of the stop before it comes: neither gives the other up
for its silence, whatever --keepalive says, and the time that goes by counts for no deadline of the job.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from distrun.runner.decisions.signals import stop_this_process
from distrun.runner.hosts.agent_client import AgentClient

_PAUSE_TIMEOUT = 2.0  # seconds in which agents answer; one that does not hears of it when its stream goes on


class Suspension:
    """Stops a job and lets it go on."""

    def __init__(self, agents: Mapping[str, AgentClient], signum: int = signal.SIGSTOP) -> None:
        """
        Args:
            agents: the agents of the job by host, as they come and go.
            signum: what the ranks are sent.
        """
        self._agents = agents
        self._signum = signum
        self._stopped = 0.0

    def now(self) -> float:
        """Return the time in seconds of a monotonic clock that stands still while this process is stopped by us."""
        return time.monotonic() - self._stopped

    def stop(self) -> None:
        """Stop the ranks, then this process; returns when it has been let go on, and the ranks with it."""
        began = time.monotonic()
        self.pause()
        stop_this_process()
        self._stopped += time.monotonic() - began
        self.resume()

    def pause(self) -> None:
        """Stop the ranks; returns when they are, as far as their agents answer."""
        paused = list(self._agents.values())
        for agent in paused:
            agent.pause(self._signum)
        deadline = time.monotonic() + _PAUSE_TIMEOUT
        for agent in paused:
            agent.await_pause(max(0.0, deadline - time.monotonic()))

    def resume(self) -> None:
        """Let the ranks go on."""
        for agent in self._agents.values():
            agent.resume()
