"""The options that `distrun` and `distrun doctor` share: which hosts there are, and how to reach them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from distrun.errors import UsageError
from distrun.host.endpoints import PORTS, parse_ports
from distrun.runner.planning.hosts import Host, parse_host_list
from distrun.runner.planning.ssh_config import SshOptions

Command = TypeVar("Command", bound=Callable[..., Any])


def _allow_ports(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Let this process, and all that it starts, listen at these ports only."""
    if value is not None:
        parse_ports(value)
        os.environ[PORTS] = value


def giving(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these options, which its help shows in this order."""

    def give(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return give


connection_options = giving(
    click.option(
        "--ports",
        metavar="FIRST-LAST",
        expose_value=False,
        callback=_allow_ports,
        help="Listen at these ports only, on every host. Default: at any that is free.",
    ),
    click.option(
        "--python",
        metavar="PATH",
        help="Python on other hosts; its directory is put on PATH. Default: the same path as here, else python3.",
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
"""The options that `ssh_options` reads."""

node_options = giving(
    click.option(
        "--nnodes",
        metavar="N",
        help="Number of nodes of a job whose launcher is started on each of them, as torchrun's is; MIN:MAX: at least "
        "MIN, and as many more as come soon.",
    ),
    click.option(
        "--nproc-per-node",
        metavar="N",
        help="Ranks on this machine; auto: one per GPU, or else per core; gpu; cpu. Default with --nnodes: 1.",
    ),
    click.option(
        "--node-rank",
        type=int,
        metavar="K",
        help="Place of this node among the nodes. Default: the node at the endpoint is the first, others as they come.",
    ),
    click.option(
        "--rdzv-endpoint",
        metavar="HOST[:PORT]",
        help="Where the launchers of all nodes meet: an address of one of them and a port. Default port: 29400.",
    ),
    click.option(
        "--rdzv-id",
        metavar="ID",
        help="Name of the job, the same on all nodes. They know each other by it, unless DISTRUN_KEY is set, which "
        "unlike a name can be a secret.",
    ),
    click.option(
        "--rdzv-conf",
        metavar="K=V,...",
        help="Settings of the rendezvous: timeout=600, seconds in which all nodes have to come; last_call_timeout=30, "
        "seconds for more than MIN; is_host=1 or 0, whether this node hosts it.",
    ),
)
"""The options of `distrun.runner.hosts.nodes.options`."""

output_options = giving(
    click.option("--output-dir", metavar="DIR", help="Also write what rank N prints to DIR/rank.N/stdout and stderr."),
    click.option("--tag-output/--no-tag-output", default=True, help="Begin each line with the rank that wrote it."),
    click.option(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        "--timestamp-output",
        "timestamps",
        is_flag=True,
        help="Begin each line, also in files, with the local time: 2030-01-31 09:00:00.000 [0] epoch 1.",
    ),
    click.option("--rank-filter", metavar="RANKS", help="Show the output of these ranks only: 0,2-3."),
    click.option(
        "--redirect",
        metavar="STREAMS",
        help="Write stdout (1), stderr (2) or both (3) to the files of --output-dir only; 0:3,1:2: by local rank.",
    ),
    click.option("--local-rank-filter", metavar="RANKS", help="Show the output of these ranks of each host only: 0,2."),
)
"""The options about what ranks print."""


def ssh_options(options: Mapping[str, Any], **more: Any) -> SshOptions:
    """Return the `SshOptions` that the options of `connection_options` make up. `more` are further members."""
    return SshOptions(
        port=options["ssh_port"],
        identity=options["ssh_identity_file"],
        options=options["ssh_options"],
        accept_new=options["ssh_accept_new"],
        python=options["python"],
        **more,
    )


def host_list(options: Mapping[str, Any]) -> list[Host]:
    """Return the hosts that `--hosts` or `--hostfile` lists, none when neither is given.

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
