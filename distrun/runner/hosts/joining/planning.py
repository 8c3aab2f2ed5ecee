"""The plan of a job whose hosts have joined. Pure.

Hosts that are one machine, such as two tasks of Spark on one executor host, have an agent each. Their ranks are ranks
of one host: local ranks are numbered across the agents, and memory is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from distrun.runner.hosts.joining.messages import Member
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.plan import AgentPlan, LaunchPlan, RankPlan
from distrun.runner.planning.planner import host_part, make_plan
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route
from distrun.runner.planning.variables.job import common_variables

LAUNCHER = "joined"
"""`LaunchPlan.launcher` of such a plan: the hosts have called, and their agents run already."""


def plan_of(members: Sequence[Member], request: LaunchRequest, context: LaunchContext, grace: float) -> LaunchPlan:
    """Return the plan of a job, with a part for each member: hosts with unique names, of which the launcher's is first.

    Raises:
        UsageError: the request cannot be met.
    """
    together_on: dict[str, list[Member]] = {}
    for member in members:
        together_on.setdefault(member.machine or member.name, []).append(member)
    machines = list(together_on.values())
    hosts = tuple(_host(together) for together in machines)
    request = replace(request, hosts=hosts, np=None, ranks_per_host=None, oversubscribe=False, map_by="slot")
    context = replace(context, routes={member.name: Route(member.name, member.name) for member in members[1:]})
    plan = make_plan(request, context, grace)
    agents: list[AgentPlan] = []
    for together, whole in zip(machines, plan.agents, strict=True):
        rest = whole.ranks
        for member in together:
            own, rest = rest[: member.ranks], rest[member.ranks :]
            agents.append(_part(member, _host(together), own, whole, request, context))
    # Agents on one machine have no port of their own to meet at: the port of the first is used.
    return replace(plan, agents=tuple(agents), routes={}, launcher=LAUNCHER)


def _host(together: Sequence[Member]) -> Host:
    """Return the host that the members of one machine make up."""
    gpus = tuple(dict.fromkeys(gpu for member in together for gpu in member.gpus))
    return Host(together[0].name, sum(member.ranks for member in together), gpus=gpus)


def _part(
    member: Member,
    host: Host,
    ranks: list[RankPlan],
    whole: AgentPlan,
    request: LaunchRequest,
    context: LaunchContext,
) -> AgentPlan:
    """Return a member's part of the plan of its machine."""
    variables = common_variables(request, context)
    own = Host(member.name, member.ranks, gpus=host.gpus)
    part = host_part(own, host.slots or 1, request, context, variables)
    wdir = request.wdir or member.wdir
    return replace(part, wdir=wdir, grace=whole.grace, ranks=ranks, ports=len(ranks) if request.tf_config else 0)
