"""An elastic job whose hosts join: all hosts that have joined are available, and a lost host can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from distrun.runner.decisions.elastic.options import UNLIMITED
from distrun.runner.decisions.events import Event, HostsFound
from distrun.runner.elastic.host_list import HostList
from distrun.runner.elastic.preparation import ElasticPlan, ElasticRequest, check_elastic, elastic_limits, plan_hosts
from distrun.runner.hosts.joining.listener import JoinListener
from distrun.runner.hosts.joining.messages import Member
from distrun.runner.hosts.joining.planning import LAUNCHER
from distrun.runner.planning.hosts import Host
from distrun.runner.planning.prepare import chosen_settings
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.planning.ssh_config import Route


class JoinedHosts:
    """The hosts that have joined, as a host source. See `distrun.runner.elastic.discovery.HostSource` for the
    interface.
    """

    def __init__(self, join_listener: JoinListener, listed: HostList) -> None:
        self._join_listener = join_listener
        self._listed = listed

    def start(self, post: Callable[[Event], None], say: Callable[[str], None]) -> None:
        """Post the available hosts, now and whenever a host has joined or left."""

        def tell() -> None:
            post(HostsFound(self._listed.add(self.list_hosts())))

        self._join_listener.watch(tell)
        tell()

    def close(self) -> None:
        """Stop posting."""
        self._join_listener.watch(lambda: None)

    def list_hosts(self) -> list[Host]:
        """Return the available hosts."""
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
        join_listener: the listener that hosts join at.
        members: the hosts that have joined, beginning with the launcher's.
        request: the user's request.
        elastic: the request for an elastic job.
        context: the facts about the launching process.
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
