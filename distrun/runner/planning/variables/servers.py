"""Parameter servers: distrun's processes beside the ranks, which ranks find by an environment variable. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distrun.contract.launch import PREFIX, SERVER, SERVER_COPIES, SERVER_GENERATION, SERVER_RESTARTS, SERVERS
from distrun.errors import UsageError
from distrun.host.endpoints import format_endpoint
from distrun.runner.planning.request import LaunchContext, LaunchRequest

_MOST_REFUGES = 8
HOSTNAME = PREFIX + "HOSTNAME"
"""The variable that identifies processes left behind by a host's agent. Ranks have it from their contract."""


def refuse(servers: int, other: str, remedy: str) -> None:
    """Refuse parameter servers in a launch that has the option `other`, which excludes them.

    Raises:
        UsageError: `servers` is not 0.
    """
    if servers:
        raise UsageError(f"--servers {servers} does not go with {other}: {remedy}")


def of_rank(request: LaunchRequest, context: LaunchContext) -> dict[str, str]:
    """Return the variables that lead a rank to the servers. The endpoints are filled in when hosts have answered."""
    if not request.servers:
        return {}
    return {SERVERS: "", SERVER_RESTARTS: str(request.server_restarts), **_copies(request, context)}


def of_server(request: LaunchRequest, context: LaunchContext, number: int, host: str) -> dict[str, str]:
    """Return the variables of one server on a host."""
    own = {PREFIX + "JOB": context.job, PREFIX + "KEY": context.key, SERVER: str(number), SERVERS: ""}
    return {**own, HOSTNAME: host, **_copies(request, context)}


def refuges(ranks: Mapping[str, int]) -> frozenset[str]:
    """Return the hosts that servers of other hosts may move to: at most 8, beginning with hosts without ranks.

    They are few, as workers get every possible endpoint in one environment variable, which holds at most 128 KiB.
    """
    return frozenset(sorted(ranks, key=lambda host: ranks[host] > 0)[:_MOST_REFUGES])


def moved(environ: Mapping[str, str], host: str, generation: int) -> dict[str, str]:
    """Return the variables of a server that moves to another host, after `generation` restarts of servers."""
    return {**environ, HOSTNAME: host, SERVER_GENERATION: str(generation)}


def copies_of(request: LaunchRequest, context: LaunchContext) -> str:
    """Return `SECONDS:FOLDER` for copies of the servers' parameters, with the job's folder, or "" without copies."""
    return f"{request.server_copies}/distrun-{context.job[:16]}" if request.server_copies else ""


def _copies(request: LaunchRequest, context: LaunchContext) -> dict[str, str]:
    return {SERVER_COPIES: copies_of(request, context)} if request.server_copies else {}


def found(places: Mapping[int, Sequence[tuple[Sequence[str], int]]]) -> dict[str, str]:
    """Return the variable with the endpoints of all servers, or nothing without servers.

    Args:
        places: for each server's number, the addresses of its host, the best first, and its port there, followed by the
            same for the hosts that it may move to.
    """
    texts = [
        ",".join(format_endpoint(address, port) for addresses, port in hosts for address in addresses)
        for _, hosts in sorted(places.items())
    ]
    return {SERVERS: ";".join(texts)} if texts else {}
