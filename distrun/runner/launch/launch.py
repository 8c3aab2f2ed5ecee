"""A launch by the command `distrun`: with one launcher or one per node, elastic or not, or a dry run. `distrun.run`
plans and makes its jobs by the same functions.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint
from distrun.runner.command_lines.elastic_options import is_elastic
from distrun.runner.command_lines.job_options import job_options, shown_ranks
from distrun.runner.command_lines.request import launch_request
from distrun.runner.hosts.options import ssh_options
from distrun.runner.job.job import Job
from distrun.runner.output.sinks import DescriptorSink, Sink
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import LaunchPlan, describe
from distrun.runner.planning.prepare import chosen_settings, prepare
from distrun.runner.planning.request import LaunchRequest
from distrun.runner.planning.ssh_config import SshOptions
from distrun.runner.planning.variables import servers
from distrun.runner.shipping.options import check_shipping

if TYPE_CHECKING:
    from distrun.runner.elastic.preparation import ElasticPlan
    from distrun.runner.hosts.nodes.options import NodeOptions
    from distrun.runner.hosts.nodes.rendezvous import RendezvousOptions

_OF_NODES = ("nnodes", "nproc_per_node", "node_rank", "rdzv_endpoint", "rdzv_conf")


def _nodes(options: dict[str, Any]) -> NodeOptions | None:
    """Return the options about nodes, or None if none is given, the usual case."""
    if all(options[name] is None for name in _OF_NODES):
        return None
    from distrun.runner.hosts.nodes.options import node_options

    return node_options(options, os.environ)


def run(options: dict[str, Any]) -> int:
    """Run the launch that the options of `distrun` describe, and return the exit status.

    Raises:
        DistrunError: that is not possible. The text has the reason and the remedy.
    """
    if options["auto"] is not None and is_elastic(options):
        raise UsageError("--auto cannot be elastic: leave out --elastic and the options that imply it, or --auto")
    if options["auto"] == "explain":
        # With the interpreter that would run the script.
        return subprocess.run(launch_request(options).command, cwd=options["wdir"]).returncode
    check_shipping(options)
    nodes = _nodes(options)
    if nodes is not None and nodes.rendezvous is not None:
        if is_elastic(options):
            raise UsageError(
                f"--nnodes {options['nnodes']} starts a launcher on each node, which cannot be elastic: start one "
                "launcher for all hosts, with -H or --hosts-from"
            )
        servers.refuse(options["servers"], f"--nnodes {options['nnodes']}", "start one launcher for all hosts, with -H")
        return _run_node(options, nodes.ranks, nodes.rendezvous, nodes.index)

    request = launch_request(options)
    if nodes is not None:
        request = replace(request, hosts=(Host("localhost", nodes.ranks),), nodes=1)
    launch = Launch(options, request)
    if not options["dry_run"]:
        return launch.job(DescriptorSink(1), DescriptorSink(2)).run().status
    if isinstance(launch.plan, LaunchPlan):
        shown_ranks(request, launch.plan.size)
        click.echo(describe(launch.plan, os.environ))
    else:
        click.echo(launch.plan.describe(os.environ))
    return 0


class Launch:
    """A launch with one launcher, which is planned."""

    def __init__(self, options: dict[str, Any], request: LaunchRequest, ssh: SshOptions | None = None) -> None:
        """
        Args:
            options: the options of the command line.
            request: what they request.
            ssh: the options for reaching hosts. None = those of the command line.

        Raises:
            UsageError: the request cannot be met.
        """
        # Agents cannot observe the ranks of mpirun, which write the timeline themselves.
        self._request = request = replace(request, writes_timeline=request.launcher != "mpirun")
        self._options = options
        self._ssh = ssh or ssh_options(options, keepalive=chosen_settings(request).keepalive)
        self.plan: LaunchPlan | ElasticPlan
        if is_elastic(options):
            from distrun.runner.elastic.preparation import ElasticRequest, prepare_elastic

            servers.refuse(request.servers, "elastic jobs", "leave out --elastic and the options that imply it")
            self.plan = prepare_elastic(request, ElasticRequest.of(options), options["grace"], self._ssh)
        else:
            self.plan = prepare(request, options["grace"], self._ssh)

    def job(self, stdout: Sink, stderr: Sink, function: bytes | None = None) -> Job:
        """Return the job, which prints to these sinks, and runs a pickled `function` if one is given.

        Raises:
            UsageError: an option is not valid.
        """
        plan = self.plan
        first, most = (plan, plan.size) if isinstance(plan, LaunchPlan) else (plan.first, plan.options.max_np)
        chosen = job_options(self._options, self._request, first, most)
        chosen = replace(chosen, ssh=self._ssh, function=function)
        if isinstance(plan, LaunchPlan):
            return Job(plan, chosen, stdout, stderr)
        from distrun.runner.elastic.job import ElasticJob

        return ElasticJob(plan, chosen, stdout, stderr)


def _run_node(options: dict[str, Any], ranks: int, rendezvous: RendezvousOptions, index: int | None) -> int:
    """Run this node's part of a job with a launcher on every node."""
    from distrun.runner.hosts.joining.messages import format_size
    from distrun.runner.hosts.nodes.launch import launch

    request = launch_request(options)
    if options["dry_run"]:
        size, where = format_size(rendezvous.least, rendezvous.most), format_endpoint(*rendezvous.endpoint.address)
        click.echo(f"{size} nodes meet at {where}; ranks on this one: {ranks}")
        return 0
    launched = launch(
        request, options["grace"], rendezvous, ranks, index, lambda text: click.echo(f"distrun: {text}", err=True)
    )
    try:
        chosen = job_options(options, request, launched.plan, launched.plan.size)
        job = Job(launched.plan, chosen, DescriptorSink(1), DescriptorSink(2), peers=launched.peers)
        return job.run().status
    finally:
        launched.close()
