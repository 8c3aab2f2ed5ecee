"""The agents of a job, by host, and the usual ways to start them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from distrun.runner.hosts.agent_client import AgentClient, AgentObserver, AgentProcess
from distrun.runner.hosts.connector import Starter
from distrun.runner.hosts.local import LocalAgentProcess
from distrun.runner.job.options import JobOptions
from distrun.runner.planning.plan import AgentPlan, LaunchPlan
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.frames import Frame


class Agents(dict[str, AgentClient]):
    """The agents that a job has, by host; in an elastic job they come and go. For the thread that decides."""

    def __init__(
        self,
        observer: AgentObserver,
        log: Callable[[str], None],
        adopted: Callable[[AgentClient], None] = lambda agent: None,
    ) -> None:
        """
        Args:
            observer: is told what they report.
            log: is told of each agent that is started.
            adopted: is given each of them, before its ranks start.
        """
        super().__init__()
        self._adopted = adopted
        self._observer = observer
        self._log = log

    def adopt(self, host: str, process: AgentProcess) -> None:
        """Take an agent that has been started, and begin to read what it reports."""
        self[host] = agent = AgentClient(host, process, self._observer)
        agent.start()
        self._adopted(agent)
        self._log(f"agent on {host} started (pid {process.pid})")

    def start_here(self, part: AgentPlan, marker: str | None) -> None:
        """Start the agent of this machine.

        Args:
            part: this machine's part of the plan.
            marker: the variable by which descendants of this process belong to the job; None = all of them do.

        Raises:
            LaunchError: it could not be started.
        """
        self.adopt(part.host, LocalAgentProcess(part, marker))

    def broadcast(self, frame: Frame) -> None:
        """Send all agents a frame."""
        for agent in self.values():
            agent.send(frame)

    def kill(self) -> None:
        """End all agents at once, and what is left of their descendants."""
        for agent in self.values():
            agent.kill()
            agent.clean_up()

    def close(self) -> None:
        """Close the connections with agents that are dead."""
        for agent in self.values():
            agent.close()


def usual_starter(plan: LaunchPlan, options: JobOptions, routes: Mapping[str, Route]) -> Starter:
    """Return what starts agents on other hosts: srun if the plan says so, else SSH."""
    from distrun.runner.shipping.delivery import Delivery

    delivery = options.delivery or Delivery()
    if plan.launcher == "srun":
        from distrun.runner.hosts.srun import SrunStarter

        return SrunStarter(plan.job, options.ssh, options.start_timeout, delivery)
    from distrun.runner.hosts.ssh.ssh import SshStarter  # paramiko costs 200 ms

    return SshStarter(plan.job, routes, options.ssh, options.start_timeout, delivery)
