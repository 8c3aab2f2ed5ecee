"""Reaching all remote hosts at once: a few threads, and a report for each host to the one decider."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Protocol

from distrun.runner.connect.agent_client import AgentProcess
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol.handshake import HostError
from distrun.runner.supervision import events

MOST_AT_ONCE = 100  # connections being made at the same time; a handshake costs milliseconds of CPU, a silent host 10 s


class Starter(Protocol):
    """A way to start agents on other hosts. Its methods are called by many threads."""

    def start(self, plan: AgentPlan) -> tuple[AgentProcess, str]:
        """Start one; returns it and a note for the user, perhaps empty.

        Raises:
            HostError: the host cannot be used.
        """

    def close(self) -> None:
        """Let go of what several agents share; they are all gone."""


class Connector:
    """Starts the agents of remote hosts. Each becomes a `HostReady` or a `HostRefused`."""

    def __init__(self, plans: Iterable[AgentPlan], starter: Starter, post: Callable[[events.Event], None]) -> None:
        """Args: the remote hosts' parts of the plan; how to start an agent; who is told."""
        self._starter = starter
        self._post = post
        self._waiting: SimpleQueue[AgentPlan] = SimpleQueue()
        self._ready: dict[str, AgentProcess] = {}
        self._lock = threading.Lock()
        self._cancelled = False
        self._count = 0
        for plan in plans:
            self._waiting.put(plan)
            self._count += 1

    def start(self) -> None:
        """Begin to connect; returns at once."""
        for number in range(min(self._count, MOST_AT_ONCE)):
            # A daemon: nobody waits at exit for a host that does not answer.
            threading.Thread(target=self._work, name=f"distrun connect {number}", daemon=True).start()

    def take(self, host: str) -> AgentProcess:
        """The agent of a host that is ready; the caller owns it from now on."""
        with self._lock:
            return self._ready.pop(host)

    def close(self) -> None:
        """Connect to no more hosts, and let go of every agent that nobody has taken, now or when it comes."""
        with self._lock:
            self._cancelled = True
            left = list(self._ready.values())
            self._ready.clear()
        for process in left:
            process.close()
        self._starter.close()

    def _work(self) -> None:
        while not self._cancelled:
            try:
                plan = self._waiting.get_nowait()
            except Empty:
                return
            self._connect(plan)

    def _connect(self, plan: AgentPlan) -> None:
        try:
            process, note = self._starter.start(plan)
        except HostError as error:
            self._post(events.HostRefused(plan.host, str(error)))
            return
        except Exception as error:  # whatever it is, a host nobody reports on would leave the job waiting
            self._post(events.HostRefused(plan.host, repr(error)))
            return
        with self._lock:
            if not self._cancelled:
                self._ready[plan.host] = process
                self._post(events.HostReady(plan.host, note))
                return
        process.close()
