"""Parameter servers: processes of ours beside the ranks, which ranks find by an environment variable. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint
from distrun.runner.planning.request import LaunchContext, LaunchRequest
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


def of_rank(request: LaunchRequest) -> dict[str, str]:
    """Return the variables by which a rank finds the servers; the endpoints are known only when hosts have answered."""
    return {SERVERS: "", SERVER_RESTARTS: str(request.server_restarts)} if request.servers else {}


def of_server(context: LaunchContext, number: int) -> dict[str, str]:
    """Return the variables of one server."""
    return {PREFIX + "JOB": context.job, PREFIX + "KEY": context.key, SERVER: str(number), SERVERS: ""}


def hosts_of_each(servers: int, hosts: Sequence[str]) -> list[str]:
    """Return the host of each server: those that have ranks take turns. Servers need no slots."""
    return [hosts[number % len(hosts)] for number in range(servers)]


def found(places: Mapping[int, tuple[Sequence[str], int]]) -> dict[str, str]:
    """Return the variable with the endpoints of all servers; nothing if there are none.

    Args:
        places: by the number of the server, the addresses of its host, the best first, and its port.
    """
    texts = [
        ",".join(format_endpoint(address, port) for address in addresses)
        for _, (addresses, port) in sorted(places.items())
    ]
    return {SERVERS: ";".join(texts)} if texts else {}
