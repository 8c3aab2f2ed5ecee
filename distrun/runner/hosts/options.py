"""The options that `distrun` and `distrun doctor` share: which hosts there are, and how to reach them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from distrun.errors import UsageError
from distrun.host.endpoints import PORTS, parse_ports
from distrun.runner.planning.hosts import Host, parse_host_list
from distrun.runner.planning.ssh_config import SshOptions
from distrun.runner.system.click_options import giving, option


def _allow_ports(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Let this process, and all that it starts, listen at these ports only."""
    if value is not None:
        parse_ports(value)
        os.environ[PORTS] = value


connection_options = giving(
    option(
        "--ports FIRST-LAST",
        "Listen at these ports only, on every host. Default: at any that is free.",
        expose_value=False,
        callback=_allow_ports,
    ),
    option(
        "--python PATH",
        "Python on other hosts; its directory is put on PATH. Default: the same path as here, else python3.",
    ),
    option("-p --ssh-port PORT", "SSH port of other hosts.", click.IntRange(1, 65535)),
    option("-i --ssh-identity-file FILE", "Private key to log in to other hosts with."),
    option("--ssh-option ssh_options K=V", "An option as in ~/.ssh/config, over which it wins.", multiple=True),
    option("--ssh-accept-new", "Accept the keys of hosts never seen before, and add them to known_hosts."),
)
"""The options that `ssh_options` reads."""

node_options = giving(
    option(
        "--nnodes N",
        "Number of nodes of a job whose launcher is started on each of them, as torchrun's is; MIN:MAX: at least "
        "MIN, and as many more as come soon.",
    ),
    option(
        "--nproc-per-node N",
        "Ranks on this machine; auto: one per GPU, or else per core; gpu; cpu. Default with --nnodes: 1.",
    ),
    option(
        "--node-rank K",
        "Place of this node among the nodes. Default: the node at the endpoint is the first, others as they come.",
        int,
    ),
    option(
        "--rdzv-endpoint HOST[:PORT]",
        "Where the launchers of all nodes meet: an address of one of them and a port. Default port: 29400.",
    ),
    option(
        "--rdzv-id ID",
        "Name of the job, the same on all nodes. They know each other by it, unless DISTRUN_KEY is set, which "
        "unlike a name can be a secret.",
    ),
    option(
        "--rdzv-conf K=V,...",
        "Settings of the rendezvous: timeout=600, seconds in which all nodes have to come; last_call_timeout=30, "
        "seconds for more than MIN; is_host=1 or 0, whether this node hosts it.",
    ),
)
"""The options of `distrun.runner.hosts.nodes.options`."""

output_options = giving(
    option("--output-dir DIR", "Also write what rank N prints to DIR/rank.N/stdout and stderr."),
    option("--tag-output/--no-tag-output", "Begin each line with the rank that wrote it.", default=True),
    option(
        "-prefix-timestamp --prefix-output-with-timestamp --timestamp-output timestamps",
        "Begin each line, also in files, with the local time: 2030-01-31 09:00:00.000 [0] epoch 1.",
    ),
    option("--rank-filter RANKS", "Show the output of these ranks only: 0,2-3."),
    option(
        "--redirect STREAMS",
        "Write stdout (1), stderr (2) or both (3) to the files of --output-dir only; 0:3,1:2: by local rank.",
    ),
    option("--local-rank-filter RANKS", "Show the output of these ranks of each host only: 0,2."),
)
"""The options about what ranks print."""


def ssh_options(options: Mapping[str, Any], **more: Any) -> SshOptions:
    """Return the `SshOptions` that the options of `connection_options` make up. `more` are further members.

    Raises:
        UsageError: the private key does not exist.
    """
    key = options["ssh_identity_file"]
    if key is not None and not os.path.isfile(key):
        raise UsageError(f"-i {key!r} is not a file: give the private key to log in to other hosts with")
    return SshOptions(
        port=options["ssh_port"],
        identity=key,
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
