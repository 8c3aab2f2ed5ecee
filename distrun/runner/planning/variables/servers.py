"""Parameter servers: processes of ours beside the ranks, which ranks find by an environment variable. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distrun.contract.launch import PREFIX, SERVER, SERVER_COPIES, SERVER_GENERATION, SERVER_RESTARTS, SERVERS
from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint
from distrun.runner.planning.request import LaunchContext, LaunchRequest

_MOST_REFUGES = 8
HOSTNAME = PREFIX + "HOSTNAME"
"""The variable by which what is left of a host is told apart; ranks have it from their contract."""


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


def of_rank(request: LaunchRequest, context: LaunchContext) -> dict[str, str]:
    """Return the variables by which a rank finds the servers; the endpoints are known only when hosts have answered."""
    if not request.servers:
        return {}
    return {SERVERS: "", SERVER_RESTARTS: str(request.server_restarts), **_copies(request, context)}


def of_server(request: LaunchRequest, context: LaunchContext, number: int, host: str) -> dict[str, str]:
    """Return the variables of one server on a host."""
    own = {PREFIX + "JOB": context.job, PREFIX + "KEY": context.key, SERVER: str(number), SERVERS: ""}
    return {**own, HOSTNAME: host, **_copies(request, context)}


def refuges(ranks: Mapping[str, int]) -> frozenset[str]:
    """Return the hosts to which servers of others may come: a few, first those without ranks.

    Workers must know beforehand where a server may be, and a variable of the environment holds 128 KiB.

    Args:
        ranks: the number of ranks of each host.
    """
    return frozenset(sorted(ranks, key=lambda host: ranks[host] > 0)[:_MOST_REFUGES])


def moved(environ: Mapping[str, str], host: str, generation: int) -> dict[str, str]:
    """Return the variables of a server that comes to another host, after so many restarts of servers."""
    return {**environ, HOSTNAME: host, SERVER_GENERATION: str(generation)}


def copies_of(request: LaunchRequest, context: LaunchContext) -> str:
    """Return the seconds between copies of what servers hold, a colon, and the job's folder; empty: there are none."""
    return f"{request.server_copies}/distrun-{context.job[:16]}" if request.server_copies else ""


def _copies(request: LaunchRequest, context: LaunchContext) -> dict[str, str]:
    return {SERVER_COPIES: copies_of(request, context)} if request.server_copies else {}


def hosts_of_each(servers: int, hosts: Sequence[str]) -> list[str]:
    """Return the host of each server: hosts take turns. Servers need no slots."""
    return [hosts[number % len(hosts)] for number in range(servers)]


def found(places: Mapping[int, Sequence[tuple[Sequence[str], int]]]) -> dict[str, str]:
    """Return the variable with the endpoints of all servers; nothing if there are none.

    Args:
        places: by the number of the server, the addresses of its host, the best first, and its port there; and then
            those of the hosts that it may move to.
    """
    texts = [
        ",".join(format_endpoint(address, port) for addresses, port in hosts for address in addresses)
        for _, hosts in sorted(places.items())
    ]
    return {SERVERS: ";".join(texts)} if texts else {}
