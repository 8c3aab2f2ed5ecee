"""Converts the options of a launch to the request that is planned."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from distrun.errors import UsageError
from distrun.host.numerals import real_number, whole_number
from distrun.runner.hosts.options import host_list
from distrun.runner.observation.timeline.options import timeline_variables
from distrun.runner.planning.hosts import Host, parse_host_list
from distrun.runner.planning.python_command import zero_line
from distrun.runner.planning.request import LaunchRequest


def launch_request(options: dict[str, Any]) -> LaunchRequest:
    """Return the request for the options of a command line.

    Raises:
        UsageError: the command is missing, or an option is not valid.
    """
    if not options["command"]:
        raise UsageError(
            "there is no command to start: give one after the options, as in distrun -np 2 python train.py"
        )
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError("the working directory has been deleted: change to one that exists, as in cd ~") from None
    made = {
        "command": _command(options),
        "hosts": tuple(host_list(options)),
        "name": options["rdzv_id"] or "none",
        "stdin": _stdin_rank(options["stdin"]),
        "autotune": _autotune(options),
        "autotune_log": options["autotune_log_file"],
        "server_restarts": _server_restarts(options),
        "server_hosts": _server_hosts(options),
        "server_copies": _server_copies(options),
        "auto": options["auto"] is not None,
        "timeline": timeline_variables(options),
    }
    same = {field.name for field in fields(LaunchRequest)} & options.keys()  # as the user gives them
    return LaunchRequest(**{**{name: options[name] for name in same}, **made})


def _autotune(options: dict[str, Any]) -> bool:
    for name, value in (
        ("--autotune-log-file", options["autotune_log_file"]),
        ("--autotune-allow-wire-dtype", ",".join(options["autotune_wire_dtypes"])),
    ):
        if value and not options["autotune"]:
            raise UsageError(f"{name} {value} says how to tune, and nothing is tuned: give --autotune too")
    return bool(options["autotune"])


def _server_restarts(options: dict[str, Any]) -> int:
    restarts: int = options["server_restarts"]
    if restarts and not options["servers"]:
        raise UsageError(f"--server-restarts {restarts} restarts servers, and there are none: give --servers N too")
    return restarts


def _server_hosts(options: dict[str, Any]) -> tuple[Host, ...]:
    text: str | None = options["server_hosts"]
    if text is None:
        return ()
    if not options["servers"]:
        raise UsageError(f"--server-hosts {text} is for parameter servers, and there are none: give --servers N too")
    hosts = tuple(parse_host_list(text))
    if any(host.slots is not None for host in hosts):
        raise UsageError(f"--server-hosts {text} gives slots, which servers do not need: give names alone, as in a,b")
    if len(hosts) > options["servers"]:
        raise UsageError(
            f"--server-hosts {text} names {len(hosts)} hosts for --servers {options['servers']}: give as many servers "
            "or more, or fewer hosts"
        )
    return hosts


def _server_copies(options: dict[str, Any]) -> str:
    text: str | None = options["server_checkpoint"]
    if text is None:
        return ""
    if not (options["servers"] and options["server_restarts"]):
        raise UsageError(
            f"--server-checkpoint {text} is for servers that are restarted: give --servers N and "
            "--server-restarts N too"
        )
    folder, colon, seconds = text.rpartition(":")
    if not colon:
        folder, seconds = text, "60"
    interval = real_number(seconds)
    if not folder or not interval:
        raise UsageError(
            f"--server-checkpoint {text!r} is not understood: allowed are a folder, and a folder with the seconds "
            "between copies, as in /shared/copies:30"
        )
    return f"{interval:g}:{os.path.abspath(folder)}"


def _command(options: dict[str, Any]) -> tuple[str, ...]:
    command: tuple[str, ...] = options["command"]
    if options["auto"] is None:
        return command
    if options["horovod"]:
        raise UsageError("--auto is for plain scripts, and --horovod for scripts of Horovod: give one of them")
    return zero_line(command, options["auto"], os.environ.get("PATH"), options["wdir"] or os.getcwd())


def _stdin_rank(text: str) -> int | None:
    if text == "none":
        return None
    rank = whole_number(text, 0)
    if rank is None:
        raise UsageError(f"--stdin {text!r} is not understood: allowed are none and the number of a rank")
    return rank
