"""The place of this host in its job, from the variables of its cluster and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distrun.errors import UsageError
from distrun.host import clusters
from distrun.host.clusters import kubernetes
from distrun.host.clusters.kubernetes import HOSTS, INDEX, SLOTS
from distrun.host.endpoints import LAST_PORT, format_endpoint
from distrun.host.numerals import MOST_RANKS, whole_number
from distrun.runner.hosts.joining.endpoint import parse_join_endpoint
from distrun.runner.hosts.nodes.options import count_ranks


@dataclass(frozen=True)
class Surroundings:
    """A host's place in its job: `index` of `hosts` hosts."""

    index: int
    hosts: int
    endpoint: tuple[str, int]
    """The endpoint that host 0 listens on."""
    slots: int | None = None
    """The number of ranks of the host. None = not given."""

    @property
    def where(self) -> str:
        """The endpoint as text."""
        return format_endpoint(*self.endpoint)


def read_surroundings(options: Mapping[str, Any], environ: Mapping[str, str]) -> Surroundings:
    """Return the place of this host.

    Args:
        options: `nnodes`, `node_rank` and `rdzv_endpoint` of the command line, which take precedence. None = not given.
        environ: the variables of this process.

    Raises:
        UsageError: a value is missing or impossible.
    """
    if options["node_rank"] is not None and environ.get(HOSTS):
        environ = {**environ, INDEX: str(options["node_rank"])}
    is_given = all(options[name] is not None for name in ("nnodes", "node_rank"))
    place = None if is_given else clusters.detect(environ)
    if place is None and not is_given:
        raise UsageError(
            "nobody says how many hosts the job has and which this is, as the clusters do that distrun knows: set "
            f"{HOSTS} on all of them, or give --nnodes and --node-rank"
        )
    hosts = _number("--nnodes", options["nnodes"]) if options["nnodes"] is not None else place.hosts if place else 1
    index = options["node_rank"] if options["node_rank"] is not None else place.index if place else 0
    if index not in range(hosts):
        raise UsageError(f"this is host {index} of {hosts}: allowed are 0 to {hosts - 1}")
    return Surroundings(index, hosts, _endpoint(options, environ, place, hosts), _slots(environ))


def _endpoint(
    options: Mapping[str, Any], environ: Mapping[str, str], place: clusters.HostPlace | None, hosts: int
) -> tuple[str, int]:
    text = options["rdzv_endpoint"]
    if not text and hosts > 1:
        is_kubernetes = place is None or place.cluster == kubernetes.NAME
        text = kubernetes.endpoint(environ) if is_kubernetes else place.leader if place else ""
    text = text or "localhost"
    try:
        return parse_join_endpoint(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no place where host 0 listens: allowed are HOST and HOST:PORT with ports 1 to {LAST_PORT}"
        ) from None


def _slots(environ: Mapping[str, str]) -> int | None:
    text = kubernetes.slots(environ)
    if text in ("auto", "gpu"):
        return None
    try:
        return count_ranks(text, environ)
    except UsageError:
        raise UsageError(f"{SLOTS}={text!r} is no number of ranks: allowed are 1 and more") from None


def _number(option: str, text: str) -> int:
    number = whole_number(text)
    if number is None:
        raise UsageError(f"{option} {text!r} is no number of hosts: allowed are 1 to {MOST_RANKS}")
    return number
