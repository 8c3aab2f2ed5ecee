"""The agent of another host, over SSH."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from paramiko import Transport

from distrun.runner.hosts.program import AGENT
from distrun.runner.hosts.remote import AgentTerms, RemoteAgent
from distrun.runner.hosts.ssh.ssh_program import SshProgram
from distrun.runner.hosts.ssh.ssh_transport import SshConnections, with_timeout
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.planning.ssh_config import Route, SshOptions
from distrun.runner.protocol.handshake import HostError, NoPythonError
from distrun.runner.shipping.delivery import Delivery

_USUAL_PYTHON = "python3"
_SWEEP_TIMEOUT = 6.0  # seconds for ending what a dead agent left behind. The sweep stops trying after 5
# Seconds for a new channel if the agent has timed out: it may be stopped, but more likely the link is cut.
_SHORT_CHANNEL_TIMEOUT = 2.0


class SshAgentProcess(RemoteAgent):
    """An agent over SSH. See `distrun.runner.hosts.agent_client.AgentProcess` for the interface."""

    def __init__(
        self,
        plan: AgentPlan,
        terms: AgentTerms,
        transport: Transport,
        python: str,
        timeout: float,
        on_step: Callable[[str], None],
        reconnect: Callable[[], Transport] | None = None,
    ) -> None:
        """Start the agent and run the handshake with it.

        Args:
            plan, terms, on_step: as for `RemoteAgent`.
            transport: an authenticated connection. This object closes it.
            python: the Python of its host.
            timeout: seconds for the host to open a channel.
            reconnect: connects again for the sweep, if the connection is gone but perhaps not the host. None for a job
                that is not elastic: it is over then, and does not wait for that.

        Raises:
            HostError: the host cannot be used.
        """
        self._transport = transport
        self._reconnect = reconnect
        self._second: Transport | None = None
        self._python = python
        try:
            self._channel = SshProgram(transport, python, AGENT, timeout, terms.delivery.opening(terms.job))
            super().__init__(plan, terms, self._channel, on_step)
        except BaseException:
            transport.close()
            raise

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end."""
        status = self._channel.wait()
        if status >= 0:
            last = "; ".join(self._channel.stderr().strip().splitlines()[-1:])
            words = f": {last}" if last and status else ""
            return f"(pid {self.pid}) ended unexpectedly with exit code {status}{words}", status or 1
        if self._transport.is_active():
            return f"(pid {self.pid}) was killed", 137  # SSH reports the signal, but paramiko does not pass it on
        return f"(pid {self.pid}) is out of reach: the SSH connection is gone", 1

    def close(self) -> None:
        """Wait for the end of the sweep, and close the connection."""
        super().close()
        self._transport.close()
        if self._second is not None:
            self._second.close()

    def _run(self, module: str) -> SshProgram:
        transport = self._transport
        if not transport.is_active():
            if self._reconnect is None:
                raise HostError("the SSH connection is gone")
            self._second = transport = self._reconnect()
        timeout = _SHORT_CHANNEL_TIMEOUT if self._has_timed_out else _SWEEP_TIMEOUT
        python = self._introduction.python or self._python
        return SshProgram(transport, python, module, timeout, self._introduction.opening)

    def _sweep_timeout(self) -> float:
        return _SWEEP_TIMEOUT


class SshStarter:
    """Starts agents by SSH. See `distrun.runner.hosts.connector.Starter` for the interface."""

    def __init__(
        self, job: str, routes: Mapping[str, Route], options: SshOptions, start_timeout: float, delivery: Delivery
    ) -> None:
        """`options` has the Python of the hosts and the keepalive timeout. All agents must start in `start_timeout`."""
        self._terms = AgentTerms(job, options.keepalive, time.monotonic() + start_timeout, delivery)
        self._routes = {host: with_timeout(route, max(0.1, start_timeout)) for host, route in routes.items()}
        self._python = options.python or sys.executable
        self._is_stated = options.python is not None
        self._connections = SshConnections()

    def start(self, plan: AgentPlan, on_step: Callable[[str], None]) -> tuple[SshAgentProcess, str]:
        """Connect to a host and start its agent, by its `python3` if it has no Python at this Python's path."""
        try:
            return self._start(plan, self._python, on_step)
        except NoPythonError:
            if self._is_stated or not self._terms.delivery.brings_itself:
                raise
        process, note = self._start(plan, _USUAL_PYTHON, on_step)
        remark = f"has no {self._python}: its {_USUAL_PYTHON} is used"
        return process, f"{remark}; it {note}" if note else remark

    def _start(self, plan: AgentPlan, python: str, on_step: Callable[[str], None]) -> tuple[SshAgentProcess, str]:
        route = self._routes[plan.host]
        through = f" through {route.jump.name}" if route.jump is not None else ""
        steps = {
            "tcp": f"connecting to {route.hostname} port {route.port}{through}",
            "host key": f"the SSH handshake with {route.hostname} port {route.port}",
            "login": f"logging in as {route.user}",
        }
        transport = self._connections.connect(route, lambda step: on_step(steps[step]))
        on_step(f"starting {python}")
        again = with_timeout(route, _SWEEP_TIMEOUT)
        reconnect = (lambda: self._connections.connect(again)) if plan.room else None
        process = SshAgentProcess(plan, self._terms, transport, python, route.timeout, on_step, reconnect)
        return process, process.note

    def close(self) -> None:
        """Close the connections to jump hosts."""
        self._connections.close()
