"""A run of the doctor: all hosts at once, then the network between the usable ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from distrun.contract.settings import BACKEND, current
from distrun.host.interfaces import parse_network
from distrun.host.ranks import count
from distrun.runner.hosts.job_steps import JobSteps
from distrun.runner.hosts.ssh.ssh_transport import SshConnections, with_timeout
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import AgentPlan
from distrun.runner.planning.prepare import prepare
from distrun.runner.planning.request import LaunchRequest
from distrun.runner.planning.ssh_config import SshOptions
from distrun.runner.system.fan_out import call_for_each
from distrun.tools.doctor import verdicts
from distrun.tools.doctor.connect import Access, SrunAccess, SshAccess
from distrun.tools.doctor.host_checks import CheckOptions, HostChecks
from distrun.tools.doctor.network.pair import ProbedHost, measure_all
from distrun.tools.doctor.report import HostReport, Report
from distrun.tools.doctor.shell_commands import ShellCommands


def run(
    hosts: Sequence[Host],
    ssh: SshOptions,
    wdir: str | None = None,
    network: str | None = None,
    timeout: float = 60.0,
    launcher: str | None = None,
    gpu: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Examine hosts and the network between them.

    Args:
        hosts: as in `-H`. If there are none, the scheduler's allocation, or else this machine.
        ssh: how to reach hosts other than this machine.
        wdir: the working directory of the ranks. None = the current one.
        network: the interfaces and subnets that may be used, separated by commas. None = DISTRUN_NETWORK, else all.
        timeout: seconds for each host to be reached and to answer.
        launcher: ssh or srun. None = as for a job.
        gpu: whether to make the checks of GPUs that take longer.
        on_progress: called with a text about the current activity.

    Raises:
        UsageError: the request cannot be understood.
    """
    network = current().network if network is None else network
    if network:
        parse_network(network)
    wdir = os.path.abspath(wdir or os.getcwd())
    # The same planning as for a job decides which hosts are this machine, and how to reach the others. No rank starts,
    # so the user's backend does not matter. One that does not suit these hosts would make the plan fail.
    any_backend = (f"{BACKEND}=auto",)
    request = LaunchRequest(
        (sys.executable, "-c", ""),
        hosts=tuple(hosts),
        exports=any_backend,
        share_gpus=True,
        launcher=launcher,
    )
    plan = prepare(request, 0.0, ssh)
    options = CheckOptions(ssh.python or sys.executable, wdir, network, timeout, gpu)
    with ExitStack() as shared:
        connections = shared.enter_context(closing(SshConnections()))
        steps = shared.enter_context(closing(JobSteps(os.environ))) if plan.launcher == "srun" else None

        def check(part: AgentPlan) -> HostChecks:
            if not part.remote:
                return HostChecks(part.host, Access(), ShellCommands(None, sys.executable, wdir), options)
            access: Access
            if steps is not None:
                access = SrunAccess(part.host, steps, options.python, timeout)
                return HostChecks(part.host, access, ShellCommands(None, options.python, wdir, part.host), options)
            route = with_timeout(plan.routes[part.host], max(0.1, timeout))
            access = SshAccess(route, connections)
            return HostChecks(part.host, access, ShellCommands(route, options.python, wdir), options)

        checks = [check(part) for part in plan.agents]
        try:
            return _report(checks, network, on_progress)
        finally:
            call_for_each(lambda item: item.close(), checks, "doctor")


def _report(checks: Sequence[HostChecks], network: str, on_progress: Callable[[str], None]) -> Report:
    on_progress(f"examining {count(len(checks), 'host')}")
    reports = call_for_each(lambda item: item.run(), checks, "doctor")
    twins = verdicts.twins([(item.host, item.identity) for item in checks])
    reports = [_as_twin(item, twins[item.host]) if item.host in twins else item for item in reports]
    ends = [
        ProbedHost(report.host, item.probe, item.interfaces(), item.commands)
        for report, item in zip(reports, checks, strict=True)
        if item.probe is not None and not item.probe.is_lost and report.host not in twins
    ]
    if len(ends) > 1:
        on_progress(f"measuring the network between {len(ends)} hosts")
    found, notes = measure_all(ends, network)
    machines = {report.host: report.machine for report in reports if report.machine is not None}
    return Report(tuple(reports), tuple(found), (*verdicts.differences(machines), *notes))


def _as_twin(report: HostReport, name: str) -> HostReport:
    """Return the report on a host that is the same machine as the host `name`."""
    return replace(
        report, steps=tuple(verdicts.twin(name) if step.name == "machine" else step for step in report.steps)
    )
