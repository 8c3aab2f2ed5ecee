"""From a request to a plan that this machine can carry out: the checks that look at the world, then the planning."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distrun.errors import UsageError
from distrun.runner import machine
from distrun.runner.exits import NOT_EXECUTABLE, NOT_FOUND
from distrun.runner.hosts import Host, merge, parse_hostfile
from distrun.runner.plan import AgentPlan, Launcher, LaunchPlan, LaunchRequest, make_plan
from distrun.runner.ssh_config import Route, SshOptions, SshSettings, read_config

_DEFAULTS = SshOptions()


class CommandError(UsageError):
    """The command cannot be run; `status` is the exit status a shell would give."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def prepare(request: LaunchRequest, grace: float, ssh: SshOptions = _DEFAULTS) -> LaunchPlan:
    """Check a request against this machine and plan it.

    Args:
        request: what the user asks for.
        grace: seconds from SIGTERM to SIGKILL.
        ssh: how to reach other hosts.

    Raises:
        UsageError: the request cannot be met; CommandError when that is because of the command.
    """
    hosts, remote = _sort_out(request.hosts)
    wdir = None if request.wdir is None else os.path.abspath(request.wdir)
    plan = make_plan(replace(request, hosts=tuple(hosts), wdir=wdir), _launcher(remote, ssh), grace)
    for agent in plan.agents:
        if not agent.remote:
            if request.wdir is not None and not os.path.isdir(request.wdir):
                raise UsageError(f"--wdir {request.wdir!r} is not a directory: give one that exists on every host")
            check_command(agent)
    return plan


def read_hostfile(path: str) -> list[Host]:
    """The hosts of a host file.

    Raises:
        UsageError: it cannot be read or understood.
    """
    try:
        return parse_hostfile(Path(path).read_text(), f"hostfile {path!r}")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"hostfile {path!r} cannot be read: {reason}; give a file you may read") from None


def check_command(agent: AgentPlan) -> None:
    """Find the command before anything is started.

    Raises:
        CommandError: there is no such command.
    """
    command = agent.command[0]
    path = os.path.join(agent.wdir, command) if os.sep in command else command
    if shutil.which(path, path=agent.environ.get("PATH")) is not None:
        return
    remedy = "give a program on PATH or the path of one"
    if Path(agent.wdir, command).is_file():
        remedy = f"did you mean 'python {command}'?" if command.endswith(".py") else f"try 'chmod +x {command}'"
        if os.sep in command:
            raise CommandError(f"command {command!r} is not executable: {remedy}", NOT_EXECUTABLE)
    raise CommandError(f"command {command!r} not found: {remedy}", NOT_FOUND)


def _launcher(remote: Sequence[Host], ssh: SshOptions) -> Launcher:
    routes = _routes(remote, ssh)
    direct = [route.hostname for route in routes.values() if route.jump is None and route.proxy_command is None]
    return Launcher(
        environ=dict(os.environ),
        cwd=os.getcwd(),
        job=secrets.token_hex(16),
        key=secrets.token_hex(32),
        master_port=machine.free_port(),
        cores=machine.count_cores(),
        slots=machine.default_slots(),
        routes=routes,
        address=machine.address_towards(direct[0]) if direct else socket.gethostname(),
    )


def _routes(remote: Sequence[Host], ssh: SshOptions) -> dict[str, Route]:
    if not remote:
        return {}
    home = os.path.expanduser("~")
    settings = SshSettings(read_config(home), ssh, getpass.getuser(), home)
    return {host.name: settings.route(host) for host in remote}


def _sort_out(hosts: Sequence[Host]) -> tuple[list[Host], list[Host]]:
    """All hosts, and those that are not this machine.

    All names of this machine become the first of them, so that its ranks are numbered together. Another account of this
    machine is reached like another machine.
    """
    if not hosts:
        return [], []
    names = machine.local_names(
        [host.name for host in hosts if host.user in (None, getpass.getuser())] or ["localhost"]
    )
    ours = [host for host in hosts if host.name in names and host.user in (None, getpass.getuser())]
    merged = merge(replace(host, name=ours[0].name, user=None) if host in ours else host for host in hosts)
    remote = [host for host in merged if host.user is not None or host.name not in names]
    twice = [host.name for number, host in enumerate(merged) if host.name in [item.name for item in merged[:number]]]
    if twice:
        raise UsageError(f"host {twice[0]!r} is listed with two accounts: give it with one of them")
    return merged, remote
