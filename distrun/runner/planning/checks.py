"""Checks of a plan's command and GPUs against this machine, before anything is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from distrun.errors import UsageError
from distrun.host.gpus import listed_gpus
from distrun.host.ranks import count
from distrun.runner.planning import python_command
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.protocol.exits import NOT_EXECUTABLE, NOT_FOUND


class CommandError(UsageError):
    """A command cannot be run."""

    def __init__(self, command: str, reason: str, remedy: str, status: int) -> None:
        """`status` is the exit status that a shell would give."""
        super().__init__(f"command {command!r} {reason}: {remedy}")
        self.command = command
        self.status = status


def check_command(agent: AgentPlan) -> None:
    """Check that the command of `agent` can be run here.

    Raises:
        CommandError: the command does not exist, or is not executable.
    """
    command = agent.command[0]
    path = os.path.join(agent.wdir, command) if os.sep in command else command
    if shutil.which(path, path=agent.environ.get("PATH")) is not None:
        return
    remedy = "give a program on PATH, or the path of one"
    if os.sep in command and os.path.isdir(path):
        raise CommandError(command, "is a directory", remedy, NOT_EXECUTABLE)
    if os.path.isfile(os.path.join(agent.wdir, command)):
        remedy = f"try 'chmod +x {command}'"
        if os.sep in command:
            raise CommandError(command, "is not executable", remedy, NOT_EXECUTABLE)
    raise CommandError(command, "not found", remedy, NOT_FOUND)


def check_program(command: Sequence[str], agent: AgentPlan, stdin: int | None) -> None:
    """Check that a Python in `command` has a program to run: not standard input and, on this machine, a file.

    Args:
        command: the command of the ranks.
        agent: the part of the plan that says where it runs.
        stdin: the rank that gets standard input. None = no rank does.

    Raises:
        UsageError: it has none.
    """
    program = python_command.program(command)
    if program is None:
        return
    if program in ("", "-"):
        if stdin is None:
            raise UsageError(
                f"{' '.join(command)!r} reads its program from standard input, which ranks do not get: give a script, "
                "as in python train.py, or --stdin RANK"
            )
        return
    path = os.path.join(agent.wdir, program)
    if agent.remote:
        return
    if not os.path.exists(path):
        raise UsageError(f"there is no script {program!r} in {agent.wdir}: give the path of one")
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "__main__.py")):
        raise UsageError(f"{program!r} is a directory without a __main__.py: give the script to run in it")


def check_gpus(hosts: Sequence[Host]) -> None:
    """Check that this machine has the GPUs that are listed by number for it, under its names `hosts`.

    Raises:
        UsageError: it does not.
    """
    chosen = [gpu for host in hosts for gpu in host.gpus if gpu.isdecimal()]
    present = listed_gpus() if chosen else None
    if present is not None and (missing := [gpu for gpu in chosen if int(gpu) >= present]):
        allowed = f"list 0 to {present - 1}" if present else "leave out the brackets"
        raise UsageError(
            f"{hosts[0].name} has no GPU {' and no GPU '.join(missing)}, but {count(present, 'GPU')}: {allowed}"
        )
