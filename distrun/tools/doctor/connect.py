"""Access to a host, step by step, up to a probe there: directly on this machine, by SSH, or by a job step of Slurm."""

from __future__ import annotations

import os
import socket
import subprocess

import paramiko

from distrun.runner.hosts.job_steps import JobStep, JobSteps
from distrun.runner.hosts.program import PROBE, LocalProgram, Program
from distrun.runner.hosts.ssh import known_hosts
from distrun.runner.hosts.ssh.ssh_program import SshProgram
from distrun.runner.hosts.ssh.ssh_transport import SshConnections
from distrun.runner.planning.ssh_config import Route
from distrun.runner.protocol.handshake import HostError
from distrun.runner.shipping.delivery import Delivery
from distrun.tools.doctor.report import HostCheck, Status
from distrun.tools.doctor.verdicts import family


class Access:
    """The way to reach one host. This one, to this machine, needs no steps."""

    steps: tuple[str, ...] = ()
    """The names of the steps before a Python can be started, in order."""

    def check(self, step: str) -> HostCheck:
        """Take one of these steps.

        Raises:
            HostError: the step failed.
        """
        raise NotImplementedError(step)

    def start(self, python: str) -> Program:
        """Start a probe, after all steps have succeeded.

        Raises:
            HostError: it cannot be started.
        """
        return LocalProgram(PROBE, subprocess.DEVNULL)

    def close(self) -> None:
        """Close the connection."""


class SshAccess(Access):
    """Access by SSH. The second step makes the connection, and the later ones report how it went."""

    steps: tuple[str, ...] = ("name", "tcp", "host key", "login")

    def __init__(self, route: Route, connections: SshConnections) -> None:
        """Args: the route to the host, and the object that makes connections."""
        self._route = route
        self._connections = connections
        self._transport: paramiko.Transport | None = None
        self._refusal: HostError | None = None
        self._begun = ""

    def check(self, step: str) -> HostCheck:
        """See `Access`."""
        match step:
            case "name":
                return HostCheck(step, Status.OK, self._resolve())
            case "tcp":
                return self._connect(step)
            case "host key":
                return HostCheck(step, Status.OK, self._host_key())
            case _:
                if self._refusal is not None:
                    raise self._refusal
                return HostCheck(step, Status.OK, f"as {self._route.user}")

    def start(self, python: str) -> Program:
        """See `Access`."""
        assert self._transport is not None
        return SshProgram(self._transport, python, PROBE, self._route.timeout, Delivery().opening())

    def close(self) -> None:
        """See `Access`."""
        if self._transport is not None:
            self._transport.close()

    def _resolve(self) -> str:
        route = self._route
        if route.jump is not None or route.proxy_command is not None:
            through = route.jump.name if route.jump is not None else "its ProxyCommand"
            return f"{route.hostname}, left to {through}"
        try:
            found = socket.getaddrinfo(route.hostname, route.port, type=socket.SOCK_STREAM)
        except OSError:
            raise HostError(
                f"the name {route.hostname!r} is not found; correct it, or give its HostName in ~/.ssh/config"
            ) from None
        return ", ".join(dict.fromkeys(str(item[4][0]) for item in found))

    def _connect(self, step: str) -> HostCheck:
        route = self._route
        try:
            self._transport = self._connections.connect(route, self._begin)
        except HostError as error:
            self._refusal = error
            if self._begun == "tcp":
                raise
        place = f"{route.hostname} port {route.port}"
        if route.jump is not None:
            return HostCheck(step, Status.OK, f"{place} through {route.jump.name}")
        if self._transport is None or route.proxy_command is not None:
            return HostCheck(step, Status.OK, place)
        address = str(self._transport.getpeername()[0])
        if address != route.hostname:
            place += f" at {address} ({family(address)})"
        if (silent := self._silent(family(address))) is None:
            return HostCheck(step, Status.OK, place)
        text = f"{place}, and no answer at {silent} ({family(silent)}) within {route.timeout:g} s"
        remedy = f"open the firewall for {family(silent)} too, or give AddressFamily for {route.name} in ~/.ssh/config"
        return HostCheck(step, Status.WARNING, text, remedy=remedy)

    def _silent(self, reached: str) -> str | None:
        """Return the host's first address of the family that `reached` is not in, if that does not answer in time.

        A connection takes the first address that answers, and each one before it that does not costs a whole timeout.
        """
        route = self._route
        if route.family != "any":
            return None
        found = socket.getaddrinfo(route.hostname, route.port, type=socket.SOCK_STREAM)
        for address in [str(item[4][0]) for item in found if family(str(item[4][0])) != reached][:1]:
            try:
                socket.create_connection((address, route.port), route.timeout).close()
            except TimeoutError:
                return address
            except OSError:
                continue  # refused at once, which costs no time
        return None

    def _begin(self, step: str) -> None:
        self._begun = step

    def _host_key(self) -> str:
        if self._refusal is not None and self._begun == "host key":
            raise self._refusal
        if self._transport is None:
            return "as it should be"
        key = self._transport.get_remote_server_key()
        return f"{key.get_name()} {known_hosts.fingerprint(key.asbytes())}"


class SrunAccess(Access):
    """Access by a job step of this Slurm allocation. The job step that is checked is the one that runs the probe.

    `JobSteps`, which has started the job step, also ends it.
    """

    steps: tuple[str, ...] = ("srun",)

    def __init__(self, node: str, steps: JobSteps, python: str, timeout: float) -> None:
        """Args: the node, the object that starts job steps, the node's Python, seconds until the job step must run."""
        self._node = node
        self._job_steps = steps
        self._python = python
        self._timeout = timeout
        self._step: JobStep | None = None

    def check(self, step: str) -> HostCheck:
        """See `Access`."""
        self._step = self._job_steps.start(self._node, os.path.expanduser(self._python), PROBE, Delivery().opening())
        try:
            refusal = "" if self._step.await_output(self._timeout) else self._step.refusal()
        except TimeoutError:
            raise HostError(
                f"srun started nothing there within {self._timeout:g} s; "
                "see what squeue --steps and sinfo say of the node"
            ) from None
        if refusal:
            raise HostError(f"srun starts nothing there: {refusal}")
        return HostCheck(step, Status.OK, f"a job step on {self._node}")

    def start(self, python: str) -> Program:
        """See `Access`."""
        assert self._step is not None
        return self._step
