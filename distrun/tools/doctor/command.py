"""The command line of `distrun doctor`."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click

from distrun.runner.hosts.options import connection_options, host_list, ssh_options
from distrun.runner.system.click_options import POSITIVE, option

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.command(context_settings=_SETTINGS, options_metavar="[OPTIONS]")
@option(
    "-H --hosts LIST", "Hosts, as for a job; slots are ignored. Default: the scheduler's allocation, else this machine."
)
@option("-hostfile --hostfile FILE", "Read the hosts from a file, one per line.")
@option(
    "--launcher",
    "The program that reaches other hosts. Default: srun within a Slurm allocation, else ssh.",
    click.Choice(["ssh", "srun"]),
)
@option("--network LIST", "Interfaces or subnets that ranks may use: eth1,10.0.0.0/8.")
@option("--wdir DIR", "Working directory of the ranks. Default: the current one, on every host.")
@connection_options
@option(
    "--start-timeout S", "Seconds each host may take to be reached and to answer. Default: 60.", POSITIVE, default=60.0
)
@option(
    "--gpu",
    "Also check what makes GPUs slow, wrong or hang: links, copies and an allreduce between them, IOMMU, NUMA nodes, "
    "MPS, memory errors, clocks, the kernel's log. Takes a minute, with the GPUs idle.",
)
@option("--json as_json", "Print one JSON object, whose format is stable.")
def doctor(**options: Any) -> int:
    """Find out why a job would not start, or would be slow: distrun doctor -H a,b

    Each host is examined step by step, from its name to its GPUs, and the network between all hosts is measured. Every
    failure is reported with its reason, a command that shows it, and the remedy. The exit status is 0 when all is well,
    1 when something failed and 2 when the command line cannot be understood.
    """
    from distrun.tools.doctor.run import run

    ssh, hosts = ssh_options(options), host_list(options)
    with _progress() as status:
        tell = (lambda text: None) if status is None else status.update
        report = run(
            hosts,
            ssh,
            options["wdir"],
            options["network"],
            options["start_timeout"],
            options["launcher"],
            options["gpu"],
            tell,
        )
    if options["as_json"]:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print(report)
    return report.exit_status


def _progress() -> AbstractContextManager[Any]:
    """Return a context that shows a status line on stderr while it lasts, if that is a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("")


def _print(report: Any) -> None:
    from distrun.tools.doctor import rendering

    if not sys.stdout.isatty():
        click.echo(rendering.plain(report), nl=False)
        return
    from rich.console import Console

    rendering.on_terminal(report, Console())
