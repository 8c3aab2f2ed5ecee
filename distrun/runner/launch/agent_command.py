"""The command line of `distrun agent`, which a cluster manager starts on each host of a job."""

from __future__ import annotations

import os
from typing import Any

import click

from distrun.contract.settings import KEY, Settings
from distrun.errors import UsageError
from distrun.host.gpus import visible_gpus
from distrun.runner.command_lines.elastic_options import is_elastic
from distrun.runner.command_lines.job_options import job_options
from distrun.runner.command_lines.launch_options import launch_options
from distrun.runner.command_lines.request import launch_request
from distrun.runner.elastic.preparation import ElasticRequest
from distrun.runner.hosts.joining.endpoint import DEFAULT_TIMEOUT, JoinEndpoint
from distrun.runner.job.options import JobOptions
from distrun.runner.launch.joined import launch, new_key, this_host
from distrun.runner.launch.surroundings import Surroundings, read_surroundings
from distrun.runner.planning.plan import LaunchPlan
from distrun.runner.planning.variables import servers
from distrun.runner.protocol.exits import signal_name

_UNSUITABLE = (
    *("np", "hosts", "hostfile", "hosts_from", "ranks_per_host"),
    *("launcher", "mpi_args", "nproc_per_node", "rdzv_conf"),
)
_SETTINGS = {"allow_interspersed_args": False, "help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.command(context_settings=_SETTINGS, options_metavar="[OPTIONS]")
@launch_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def agent(**options: Any) -> int:
    """Run one host of a job that a cluster manager starts on each of its hosts: distrun agent -- python train.py

    Host 0 is the launcher, and the others connect to it. The number of this host, the number of hosts and the address
    of host 0 come from the variables of the cluster (Kubernetes' indexed jobs, JobSet, Kubeflow, and others in
    docs/schedulers.md), or from --node-rank, --nnodes and --rdzv-endpoint. The number of ranks of each host is --slots
    or DISTRUN_SLOTS, or else the number of its GPUs, or else one. The hosts authenticate each other with DISTRUN_KEY.
    """
    for name in _UNSUITABLE:
        if options[name] is not None:
            spelt = {"np": "-np"}.get(name, "--" + name.replace("_", "-"))
            raise UsageError(f"{spelt} is not for distrun agent, whose hosts are those that join: leave it out")
    if options["ships"] or options["bootstrap"] is not None:
        spelt = "--ship" if options["ships"] else "--bootstrap"
        raise UsageError(
            f"{spelt} is not for distrun agent, whose hosts have what their image has: give it to distrun k8s"
        )
    servers.refuse(options["servers"], "distrun agent", "start one launcher for all hosts, with -H")
    request = launch_request(options)
    around = read_surroundings(options, os.environ)
    member = this_host(around.index, around.hosts, options["slots"] or around.slots or visible_gpus(os.environ) or 1)
    if options["dry_run"]:
        click.echo(f"host {member.index} of {member.hosts}; ranks here: {member.ranks}; host 0: {around.where}")
        return 0
    endpoint = JoinEndpoint(around.endpoint, _key(around), options["start_timeout"] or DEFAULT_TIMEOUT)

    def make_options(plan: LaunchPlan, most: int) -> JobOptions:
        return job_options(options, request, plan, most)

    elastic = ElasticRequest.of(options) if is_elastic(options) else None
    outcome = launch(endpoint, member, request, make_options, _say, grace=options["grace"], elastic=elastic)
    if member.index and outcome.interrupted_by:
        _say(f"this host has left the job: its process received {signal_name(outcome.interrupted_by)}")
    elif member.index and outcome.failure_report:
        _say(f"the job has failed: {outcome.failure_report.removeprefix('distrun: ')}")
    elif outcome.status and not outcome.failure_report:
        _say(f"the job has ended with status {outcome.status}")
    return outcome.status


def _key(around: Surroundings) -> bytes:
    """Return the key that the hosts authenticate each other with. Raises UsageError if several hosts have none."""
    if around.hosts == 1:
        return new_key()
    key = Settings.of(os.environ).key
    if key is None:
        raise UsageError(
            f"the {around.hosts} hosts have no secret to know one another by: set {KEY} to the same text on all, as "
            "from `openssl rand -hex 32`; in Kubernetes from a Secret"
        )
    return key


def _say(text: str) -> None:
    click.echo(f"distrun: {text}", err=True)
