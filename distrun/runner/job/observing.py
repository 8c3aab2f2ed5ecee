"""Observing a job: from its start if its options ask for it, and while viewers are connected."""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from distrun.host.ranks import list_ranks
from distrun.runner.hosts.agent_client import AgentClient
from distrun.runner.hosts.local import LocalAgentProcess
from distrun.runner.job.options import JobOptions
from distrun.runner.output.recent import Recent
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.protocol.frames import Frame

if TYPE_CHECKING:
    from distrun.runner.observation.consumer import JobEnd
    from distrun.runner.observation.live.hub import Hub, Viewer
    from distrun.runner.observation.live.server import LiveServer
    from distrun.runner.observation.observation import Observation


class Observing:
    """The observation of a job, which begins and ends with its observers."""

    def __init__(
        self,
        plan: LaunchPlan,
        options: JobOptions,
        rank_of: Callable[[int], int],
        say: Callable[[str], None],
        recent: Recent,
        here: Collection[str],
    ) -> None:
        """
        Args:
            plan, options: the job.
            rank_of: returns the current rank of a process.
            say: prints a line for the user.
            recent: has the output of the ranks.
            here: the hosts that this launcher looks after.
        """
        self._plan = plan
        self._output_dir = options.output_dir
        self._first_server = options.style.first_server
        self._recent = recent
        self._here = here
        self._rank_of = rank_of
        self._say = say
        self._agents: dict[str, AgentClient] = {}
        self._lock = threading.Lock()
        self._hub: Hub | None = None
        self._is_for_viewers = not options.observers
        self._is_over = False
        self._server: LiveServer | None = None
        self._observation = self._new(options) if options.observers else None

    def _new(self, options: JobOptions) -> Observation:
        from distrun.runner.observation.live.hub import Hub
        from distrun.runner.observation.observation import Observation

        consumers = [observer(self._plan, self._say) for observer in options.observers]
        observation = Observation(consumers, self._rank_of, self._say)
        for consumer in consumers:
            if isinstance(consumer, Hub):
                self._hub = consumer
                consumer.ask_stack = observation.ask_stack
        return observation

    def start(self) -> None:
        """Start the observers that the options ask for."""
        if self._observation is not None:
            self._observation.start()

    def serve(self) -> None:
        """Start the server for viewers, which are other processes of this user on this machine."""
        from distrun.runner.observation.live.server import LiveServer

        self._server = LiveServer(self._about, self._watch, self._unwatch, self._recent, self._about_output)
        self._server.start()

    # Input from the job -----------------------------------------------------------------------------------------------

    def add(self, agent: AgentClient) -> None:
        """Observe an agent, whose ranks are about to start."""
        with self._lock:
            self._agents[agent.host] = agent
            if self._observation is not None:
                self._observation.add(agent, _is_remote(agent))

    def output(self, rank: int, data: bytes) -> None:
        """Take output of a rank (an agent's thread)."""
        if (observation := self._observation) is not None:
            observation.output(rank, data)

    def hear(self, agent: AgentClient, frame: Frame) -> None:
        """Take a frame from an agent (its thread)."""
        if (observation := self._observation) is not None:
            observation.hear(agent, frame)

    def close(self, ending: Callable[[], JobEnd]) -> None:
        """Complete the observation: the job is over."""
        with self._lock:
            self._is_over = True
            observation = self._observation
        if observation is not None:
            observation.close(ending())
        if self._server is not None:
            self._server.close(lambda: ending().status)

    # Viewers ------------------------------------------------------------------------------------------------

    def _watch(self, viewer: Viewer) -> Hub | None:
        """Show the job to `viewer`, and return its hub, or None if the job is over."""
        from distrun.runner.observation.live.hub import Hub
        from distrun.runner.observation.observation import Observation

        with self._lock:
            if self._is_over:
                return None
            if self._hub is not None:
                self._hub.add(viewer)
                return self._hub
            hub = Hub(self._plan, since=time.monotonic_ns())
            hub.add(viewer)
            if self._observation is None:
                self._observation = Observation([hub], self._rank_of, self._say)
                self._observation.start()
                for agent in self._agents.values():
                    self._observation.add(agent, _is_remote(agent))
            else:
                self._observation.join(hub)
            hub.ask_stack = self._observation.ask_stack
            self._hub = hub
            return hub

    def _unwatch(self, viewer: Viewer) -> None:
        """Disconnect `viewer`. Without viewers, the job is observed only as its options ask for."""
        from distrun.runner.observation.live.view import LiveView

        with self._lock:
            hub, observation = self._hub, self._observation
            if self._is_over or hub is None or hub.remove(viewer) or isinstance(hub, LiveView) or observation is None:
                return
            self._hub = None
            if not self._is_for_viewers:
                observation.leave(hub)
                return
            self._observation = None
            for agent in self._agents.values():
                observation.release(agent)
        observation.abandon()

    def _about(self) -> dict[str, object]:
        """Return the facts that `distrun ps` shows."""
        hub = self._hub
        latest = None if hub is None else hub.latest
        # Hosts in the order of the plan, and then hosts that an elastic job has added.
        planned = dict.fromkeys(agent.host for agent in self._plan.agents)
        return {
            "job": self._plan.job,
            "ranks": self._plan.size if latest is None else latest.size,
            "hosts": [*(host for host in planned if host in self._agents), *(self._agents.keys() - planned.keys())],
            "command": shlex.join(self._plan.command),
            "steps_per_second": None if latest is None else latest.steps_per_second,
        }

    def _about_output(self, rank: int | None) -> dict[str, object]:
        """Return the facts that `distrun logs` needs, and why the output of `rank` is not here, if it is not."""
        size = max(self._plan.size, self._recent.ranks if self._plan.is_elastic else 0)
        host = None if rank is None or self._plan.is_elastic else self._plan.host_of_each.get(rank)
        refused = None
        if rank is not None and self._plan.by_mpirun:
            refused = "mpirun starts its ranks, and prints their output as one: leave out --rank"
        elif rank is not None and rank >= size:
            refused = f"it has {list_ranks(range(size))}"
        elif host is not None and host not in self._here:
            refused = f"rank {rank} runs on {host}, whose own launcher has its output: ask there"
        return {
            "refused": refused,
            "first_server": self._first_server,
            "tags": not self._plan.by_mpirun,
            "output_dir": self._output_dir and os.path.abspath(self._output_dir),
        }


def _is_remote(agent: AgentClient) -> bool:
    return not isinstance(agent.process, LocalAgentProcess)
