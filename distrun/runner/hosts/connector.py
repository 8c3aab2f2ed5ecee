"""Starting the agents of all remote hosts at once: a few threads, and an event for each host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from distrun.runner.decisions import events
from distrun.runner.hosts.agent_client import AgentProcess
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol.handshake import AllocationOverError, HostError
from distrun.runner.system.fan_out import start_for_each


class Starter(Protocol):
    """A way to start agents on other hosts. Many threads call its methods."""

    def start(self, plan: AgentPlan, on_step: Callable[[str], None]) -> tuple[AgentProcess, str]:
        """Start the agent of a host. Return it and a remark for the user, perhaps empty.

        Args:
            plan: the host's part of the plan.
            on_step: is called with what begins, such as `logging in as me`.

        Raises:
            HostError: the host cannot be used.
        """

    def close(self) -> None:
        """Close what several agents share, after all of them have ended."""


class Connector:
    """Starts the agents of remote hosts. Posts a `HostReady` or a `HostRefused` for each."""

    def __init__(self, plans: Iterable[AgentPlan], starter: Starter, post: Callable[[events.Event], None]) -> None:
        """`plans` are the remote hosts' parts of the plan. Several threads call `post`. `close` closes `starter`."""
        self._starter = starter
        self._post = post
        self._plans = list(plans)
        self._ready: dict[str, AgentProcess] = {}
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def start(self) -> None:
        """Start connecting, and return at once."""
        start_for_each(self._connect, self._plans, "connect")

    def take(self, host: str) -> AgentProcess:
        """Return the agent of a host that is ready. The caller owns it."""
        with self._lock:
            return self._ready.pop(host)

    def close(self) -> None:
        """Stop connecting, and close every agent that `take` has not returned, now or when it is ready."""
        with self._lock:
            self._cancelled.set()
            left = list(self._ready.values())
            self._ready.clear()
        for process in left:
            process.close()
        self._starter.close()

    def _connect(self, plan: AgentPlan) -> None:
        if self._cancelled.is_set():
            return
        try:
            process, note = self._starter.start(plan, lambda step: self._post(events.HostStep(plan.host, step)))
        except HostError as error:
            is_final = isinstance(error, AllocationOverError)
            self._post(events.HostRefused(plan.host, str(error), is_final, getattr(error, "status", 2)))
            return
        except Exception as error:  # any at all: without an event the job would wait for this host for ever
            self._post(events.HostRefused(plan.host, repr(error)))
            return
        with self._lock:
            if not self._cancelled.is_set():
                self._ready[plan.host] = process
                self._post(events.HostReady(plan.host, note))
                return
        process.close()
