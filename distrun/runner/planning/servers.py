"""Parameter servers: processes of ours beside the ranks, which ranks find by an environment variable. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint
from distrun.host.interfaces import Interface
from distrun.runner.planning.plan import LaunchPlan, RankPlan
from distrun.runner.planning.request import LaunchContext, LaunchRequest
from distrun.runner.protocol.handshake import HostInfo
from distrun.runtime.contract import PREFIX, SERVER, SERVER_RESTARTS, SERVERS


def refuse(servers: int, other: str, remedy: str) -> None:
    """Refuse parameter servers in a launch that cannot have them.

    Args:
        servers: the number of servers that is asked for.
        other: the option that does not go with them.
        remedy: what to do instead.

    Raises:
        UsageError: there are any.
    """
    if servers:
        raise UsageError(f"--servers {servers} does not go with {other}: {remedy}")


def variables(request: LaunchRequest) -> dict[str, str]:
    """Return the variables by which a rank finds the servers; the endpoints are known only when hosts have answered."""
    return {SERVERS: "", SERVER_RESTARTS: str(request.server_restarts)} if request.servers else {}


def plans(request: LaunchRequest, context: LaunchContext, hosts: Sequence[str], size: int) -> dict[str, list[RankPlan]]:
    """Return the plans of the servers by host. Hosts take turns; servers need no slots.

    Args:
        request: the user's request.
        context: the facts.
        hosts: the hosts that have ranks.
        size: the number of ranks; servers have the numbers after theirs.
    """
    found: dict[str, list[RankPlan]] = {}
    for number in range(request.servers):
        own = found.setdefault(hosts[number % len(hosts)], [])
        environ = {PREFIX + "JOB": context.job, PREFIX + "KEY": context.key, SERVER: str(number), SERVERS: ""}
        own.append(RankPlan(size + number, len(own), 0, 0, 0, environ, is_server=True))
    return found


def endpoints(
    plan: LaunchPlan, infos: Mapping[str, HostInfo], interfaces: Mapping[str, Sequence[Interface]]
) -> dict[str, str]:
    """Return the variable with the endpoints of all servers; nothing if there are none.

    Args:
        plan: the plan.
        infos: what the agent of each host says of it.
        interfaces: those of each host, the best first; a job on one host needs none.
    """
    found: dict[int, str] = {}
    for part in plan.agents:
        for server, port in zip(part.servers, infos[part.host].servers, strict=True):
            alone = "127.0.0.1" if len(plan.agents) == 1 else part.host
            addresses = [item.address for item in interfaces.get(part.host, ())] or [alone]
            found[server.rank] = ",".join(format_endpoint(address, port) for address in addresses)
    return {SERVERS: ";".join(found[number] for number in sorted(found))} if found else {}
