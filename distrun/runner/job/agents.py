"""The agents of a job by host, and the default ways to start them."""

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
    """The agents of a job by host, which come and go in an elastic job. Only the job's thread uses it."""

    def __init__(
        self,
        observer: AgentObserver,
        log: Callable[[str], None],
        adopted: Callable[[AgentClient], None] = lambda agent: None,
    ) -> None:
        """`log` gets a line about each agent that is started, and `adopted` the agent before its ranks start."""
        super().__init__()
        self._adopted = adopted
        self._observer = observer
        self._log = log

    def adopt(self, host: str, process: AgentProcess) -> None:
        """Add an agent that has been started, and begin to read its frames."""
        self[host] = agent = AgentClient(host, process, self._observer)
        agent.start()
        self._adopted(agent)
        self._log(f"agent on {host} started (pid {process.pid})")

    def start_here(self, part: AgentPlan, marker: str | None) -> None:
        """Start the agent of this machine.

        Args:
            part: this machine's part of the plan.
            marker: the variable, as `NAME=VALUE`, that descendants of this process have if they belong to the job. None
                = all descendants do.

        Raises:
            LaunchError: it could not be started.
        """
        self.adopt(part.host, LocalAgentProcess(part, marker))

    def broadcast(self, frame: Frame) -> None:
        """Send a frame to all agents."""
        for agent in self.values():
            agent.send(frame)

    def kill(self) -> None:
        """Kill all agents, and all descendants that they leave behind."""
        for agent in self.values():
            agent.kill()
            agent.clean_up()

    def close(self) -> None:
        """Close the connections with the agents, which are dead."""
        for agent in self.values():
            agent.close()


def usual_starter(plan: LaunchPlan, options: JobOptions, routes: Mapping[str, Route]) -> Starter:
    """Return the starter of agents on other hosts: srun if the plan says so, else SSH."""
    from distrun.runner.shipping.delivery import Delivery

    delivery = options.delivery or Delivery()
    if plan.launcher == "srun":
        from distrun.runner.hosts.srun import SrunStarter

        return SrunStarter(plan.job, options.ssh, options.start_timeout, delivery)
    from distrun.runner.hosts.ssh.ssh import SshStarter  # paramiko costs 200 ms

    return SshStarter(plan.job, routes, options.ssh, options.start_timeout, delivery)
