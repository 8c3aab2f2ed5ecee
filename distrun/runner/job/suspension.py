"""Suspension: Ctrl-Z stops the ranks on all hosts, and then the launcher. SIGCONT, as from `fg`, resumes them.

The terminal's SIGTSTP reaches only the launcher, as each rank has its own session. Agents send ranks SIGSTOP, because
the kernel ignores SIGTSTP in orphaned process groups, such as the ranks'. The launcher announces the stop to the agents
first, so that neither side counts the other as lost, whatever the value of --keepalive. The time until the job is
resumed does not count towards its deadlines.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from distrun.runner.decisions.signals import stop_this_process
from distrun.runner.hosts.agent_client import AgentClient

_PAUSE_TIMEOUT = 2.0  # seconds to wait for all answers: an agent that is late stops its ranks when it reads the frame


class Suspension:
    """Stops and resumes a job."""

    def __init__(self, agents: Mapping[str, AgentClient], signum: int = signal.SIGSTOP) -> None:
        """`agents` are the job's by host, as they come and go, and `signum` is the signal that stops the ranks."""
        self._agents = agents
        self._signum = signum
        self._stopped = 0.0

    def now(self) -> float:
        """Return the seconds of a monotonic clock that stands still while `stop` has stopped this process."""
        return time.monotonic() - self._stopped

    def stop(self) -> None:
        """Stop the ranks, then this process. Returns when both have been resumed."""
        began = time.monotonic()
        self.pause()
        stop_this_process()
        self._stopped += time.monotonic() - began
        self.resume()

    def pause(self) -> None:
        """Stop the ranks. Returns when all agents have answered, or after `_PAUSE_TIMEOUT`."""
        paused = list(self._agents.values())
        for agent in paused:
            agent.pause(self._signum)
        deadline = time.monotonic() + _PAUSE_TIMEOUT
        for agent in paused:
            agent.await_pause(max(0.0, deadline - time.monotonic()))

    def resume(self) -> None:
        """Resume the ranks."""
        for agent in self._agents.values():
            agent.resume()
