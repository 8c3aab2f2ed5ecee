"""The options that `distrun` and `distrun doctor` share: which hosts, and how to reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from distrun.errors import UsageError
from distrun.runner.planning.hosts import Host, parse_host_list
from distrun.runner.planning.ssh_config import SshOptions

Command = TypeVar("Command", bound=Callable[..., Any])

_CONNECTION_OPTIONS = (
    click.option(
        "--python",
        metavar="PATH",
        help="Python on other hosts; its directory is put on PATH. Default: the same path as here.",
    ),
    click.option("-p", "--ssh-port", type=click.IntRange(1, 65535), metavar="PORT", help="SSH port of other hosts."),
    click.option("-i", "--ssh-identity-file", metavar="FILE", help="Private key to log in to other hosts with."),
    click.option(
        "--ssh-option",
        "ssh_options",
        multiple=True,
        metavar="K=V",
        help="An option as in ~/.ssh/config, over which it wins.",
    ),
    click.option(
        "--ssh-accept-new",
        is_flag=True,
        help="Accept the keys of hosts never seen before, and add them to known_hosts.",
    ),
)


def connection_options(command: Command) -> Command:
    """Give a command the options that `ssh_options` reads."""
    for option in reversed(_CONNECTION_OPTIONS):
        command = option(command)
    return command


def ssh_options(options: Mapping[str, Any], **more: Any) -> SshOptions:
    """Return what the options of `connection_options` say; `more` are further members."""
    return SshOptions(
        port=options["ssh_port"],
        identity=options["ssh_identity_file"],
        options=options["ssh_options"],
        accept_new=options["ssh_accept_new"],
        python=options["python"],
        **more,
    )


def host_list(options: Mapping[str, Any]) -> list[Host]:
    """Return the hosts that `--hosts` or `--hostfile` lists; none when neither is given.

    Raises:
        UsageError: both are given, or what is given cannot be read or understood.
    """
    from distrun.runner.planning.prepare import read_hostfile

    listed, file = options["hosts"], options["hostfile"]
    if listed is not None and file is not None:
        raise UsageError(f"--hosts {listed!r} and --hostfile {file!r} exclude each other: give one of them")
    if listed is not None:
        return parse_host_list(listed)
    return read_hostfile(file) if file is not None else []
