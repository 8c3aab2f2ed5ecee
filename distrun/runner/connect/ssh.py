"""The agent of another host: a program on an SSH channel, whose stdin closes when the connection does."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote

from paramiko import Channel, Transport
from paramiko.ssh_exception import SSHException

from distrun.runner.connect.remote import RemoteAgent, greet, program
from distrun.runner.connect.ssh_transport import Connections, patient
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.planning.ssh_config import Route, SshOptions
from distrun.runner.protocol.handshake import Greeting, HostError, explain, judge

_STATUS_PATIENCE = 2.0  # seconds an exit status may come after the end of the output
_CLEAN_UP_PATIENCE = 6.0  # seconds for ending what a dead agent left behind; it stops trying after 5

_SILENT_PATIENCE = (
    2.0  # seconds for a new channel when the agent is silent: it may be stopped, but likely the link is cut
)


class SshAgentProcess(RemoteAgent):
    """An agent on another host; see `distrun.runner.connect.agent_client.AgentProcess` for the interface."""

    def __init__(
        self, plan: AgentPlan, job: str, route: Route, options: SshOptions, connections: Connections, deadline: float
    ) -> None:
        """Connect, start the agent and hear its first words.

        Args:
            plan: its part of the plan. It is not handed over here.
            job: the job's name, by which what it leaves behind is found.
            route: where its host is.
            options: the flags.
            connections: makes them.
            deadline: when to give up.

        Raises:
            HostError: the host cannot be used.
        """
        super().__init__(plan.host, job, options.keepalive)
        self._python = options.python or sys.executable
        self._transport = connections.connect(route)
        try:
            self._channel = _execute(
                self._transport, remote_command(self._python, "distrun.runner.agent"), route.timeout
            )
            greeting = Greeting(options.keepalive, plan.wdir, plan.ports)
            self.answer, self._early = greet(greeting, deadline, self.write, self._receive, self._stillborn)
            self.note = judge(self.answer, self._python)
        except (SSHException, EOFError, OSError) as error:
            self._transport.close()
            raise HostError(f"the connection was lost while the agent started: {error}") from None
        except BaseException:
            self._transport.close()
            raise

    def write(self, data: bytes) -> None:
        """Send it all; raises OSError when there is nobody any more."""
        self._channel.sendall(data)

    def end_of_life(self) -> tuple[str, int]:
        """Wait for the agent's end."""
        ended = self._channel.status_event.wait(_STATUS_PATIENCE)
        status = self._channel.exit_status if ended else -1
        if status >= 0:
            last = "; ".join(_stderr(self._channel).strip().splitlines()[-1:])
            words = f": {last}" if last and status else ""
            return f"(pid {self.pid}) left without a farewell, with exit code {status}{words}", status or 1
        if self._transport.is_active():
            return f"(pid {self.pid}) was killed", 137  # SSH told the signal, and paramiko does not pass it on
        return f"(pid {self.pid}) is out of reach: the SSH connection is gone", 1

    def kill(self) -> None:
        """Close the agent's stdin, which ends it; one that does not mind is `clean_up`'s business."""
        self._channel.close()

    def _sweep(self) -> None:
        if not self._transport.is_active():
            return  # out of reach; the agent notices, too
        patience = _SILENT_PATIENCE if self._silent else _CLEAN_UP_PATIENCE
        with suppress(SSHException, EOFError, OSError):
            sweep = _execute(self._transport, remote_command(self._python, "distrun.runner.agent.sweep"), patience)
            sweep.settimeout(_CLEAN_UP_PATIENCE)
            sweep.sendall(f"{self._job} {self.pid}\n".encode())
            sweep.shutdown_write()
            sweep.recv(1)  # its end

    def close(self) -> None:
        """Close the connection, when the cleaning up is done."""
        self._await_sweep()
        self._transport.close()

    def _receive(self, seconds: float | None) -> bytes:
        self._channel.settimeout(seconds)
        return self._channel.recv(1 << 20)

    def _stillborn(self, stream: bytes) -> str:
        self._channel.status_event.wait(_STATUS_PATIENCE)
        output = stream.decode(errors="replace") + _stderr(self._channel)
        return explain(self._channel.exit_status, output, self._python)


class SshStarter:
    """Starts agents by SSH; see `distrun.runner.connect.connector.Starter` for the interface."""

    def __init__(self, job: str, routes: Mapping[str, Route], options: SshOptions, start_timeout: float) -> None:
        """Args: the job's name; host -> where it is; the flags; seconds for everything."""
        self._job = job
        self._routes = {host: patient(route, max(0.1, start_timeout)) for host, route in routes.items()}
        self._options = options
        self._deadline = time.monotonic() + start_timeout
        self._connections = Connections()

    def start(self, plan: AgentPlan) -> tuple[SshAgentProcess, str]:
        """Start one."""
        route = self._routes[plan.host]
        process = SshAgentProcess(plan, self._job, route, self._options, self._connections, self._deadline)
        return process, process.note

    def close(self) -> None:
        """Close the connections to jump hosts."""
        self._connections.close()


def remote_command(python: str, module: str) -> str:
    """The command line that runs `main` of a module of ours, for any login shell; see `remote.program`."""
    home, python = ("~/", python[2:]) if python.startswith("~/") else ("", python)  # its home, so its shell must see it
    return f"exec {home}{quote(python)} -c {quote(program(module))}"


def _execute(transport: Transport, command: str, timeout: float) -> Channel:
    channel = transport.open_session(timeout=timeout)
    channel.settimeout(timeout)
    channel.exec_command(command)
    return channel


def _stderr(channel: Channel) -> str:
    data = b""
    while channel.recv_stderr_ready():
        data += channel.recv_stderr(1 << 16)
    return data.decode(errors="replace")
