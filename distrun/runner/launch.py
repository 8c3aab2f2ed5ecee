"""From a request to a plan that this machine can carry out: the checks that look at the world, then the planning."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from distrun.errors import UsageError
from distrun.runner import machine
from distrun.runner.exits import NOT_EXECUTABLE, NOT_FOUND
from distrun.runner.hosts import Host, merge, parse_hostfile
from distrun.runner.plan import AgentPlan, Launcher, LaunchPlan, LaunchRequest, make_plan


class CommandError(UsageError):
    """The command cannot be run; `status` is the exit status a shell would give."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def prepare(request: LaunchRequest, grace: float) -> LaunchPlan:
    """Check a request against this machine and plan it.

    Raises:
        UsageError: the request cannot be met; CommandError when that is because of the command.
    """
    if request.wdir is not None and not os.path.isdir(request.wdir):
        raise UsageError(f"--wdir {request.wdir!r} is not a directory: give one that exists on every host")
    wdir = None if request.wdir is None else os.path.abspath(request.wdir)
    request = replace(request, hosts=tuple(_local(request.hosts)), wdir=wdir)
    plan = make_plan(request, _launcher(), grace)
    for agent in plan.agents:
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


def _launcher() -> Launcher:
    return Launcher(
        environ=dict(os.environ),
        cwd=os.getcwd(),
        job=secrets.token_hex(16),
        key=secrets.token_hex(32),
        master_port=machine.free_port(),
        cores=machine.count_cores(),
        slots=machine.default_slots(),
    )


def _local(hosts: Sequence[Host]) -> list[Host]:
    """All names of this machine become the first of them, so that its ranks are numbered together."""
    for host in hosts:
        if host.user is not None or not machine.is_local(host.name):
            raise UsageError(
                f"host {host.name!r} is not this machine, and remote hosts are not supported in this version: "
                "use localhost"
            )
    return merge(replace(host, name=hosts[0].name) for host in hosts)
