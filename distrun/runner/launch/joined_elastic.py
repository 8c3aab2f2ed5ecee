"""An elastic job whose hosts join: those that are there may be used, and a replacement takes the place of one lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from distrun.runner.decisions.elastic.options import UNLIMITED
from distrun.runner.decisions.events import Event, HostsFound
from distrun.runner.elastic.host_list import HostList
from distrun.runner.elastic.plan import ElasticPlan
from distrun.runner.elastic.preparation import ElasticRequest, check_elastic, elastic_limits, plan_hosts
from distrun.runner.hosts.joining.listener import JoinListener
from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.joining.planning import LAUNCHER
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.prepare import chosen_settings
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route


class JoinedHosts:
    """The hosts that have joined; see `distrun.runner.elastic.discovery.HostSource` for the interface."""

    def __init__(self, join_listener: JoinListener, listed: HostList) -> None:
        self._join_listener = join_listener
        self._listed = listed

    def start(self, post: Callable[[Event], None], say: Callable[[str], None]) -> None:
        """Tell of the hosts that are there, now and whenever one has come or gone."""

        def tell() -> None:
            post(HostsFound(self._listed.add(self.list_hosts())))

        self._join_listener.watch(tell)
        tell()

    def close(self) -> None:
        """Tell of no more."""
        self._join_listener.watch(lambda: None)

    def list_hosts(self) -> list[Host]:
        """Return the hosts that are there."""
        return _hosts(self._join_listener.members())


def plan_elastic(
    join_listener: JoinListener,
    members: Sequence[Member],
    request: LaunchRequest,
    elastic: ElasticRequest,
    context: LaunchContext,
    grace: float,
) -> ElasticPlan:
    """Return the plan of an elastic job.

    Args:
        join_listener: where hosts join.
        members: those that have, the launcher's first.
        request: what is to run.
        elastic: what makes the job elastic.
        context: the facts of the launcher.
        grace: seconds from SIGTERM to SIGKILL.

    Raises:
        UsageError: the request cannot be met.
    """
    settings = chosen_settings(request)
    check_elastic(request, settings)
    own, hosts = members[0].name, _hosts(members)

    def resolve(found: Sequence[Host]) -> tuple[list[Host], dict[str, Route]]:
        return list(found), {host.name: Route(host.name, host.name) for host in found if host.name != own}

    np = sum(member.ranks for member in members)
    options = replace(elastic_limits(elastic, np, UNLIMITED, settings), discovers=True)
    context = replace(context, routes=resolve(hosts)[1])
    listed = HostList(resolve)
    request = replace(request, hosts=tuple(hosts))
    plan = plan_hosts(request, hosts, np, options, listed, context, grace, LAUNCHER)
    return replace(plan, discovery=JoinedHosts(join_listener, listed))


def _hosts(members: Sequence[Member]) -> list[Host]:
    return [Host(member.name, member.ranks, gpus=member.gpus) for member in members]
