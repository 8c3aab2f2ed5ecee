"""Lists of hosts with their slots, in the formats of `-H` and of hostfiles."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class HostInfo(NamedTuple):
    """A host and its number of slots."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> "HostInfo":
        """Return the host in a text such as `h1:4`."""
        hostname, _, slots = host_string.strip().rpartition(":")
        return HostInfo(hostname, int(slots)) if hostname else HostInfo(slots, 1)


class SlotInfo(NamedTuple):
    """The place of a rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Return the hosts of a text such as `h1:4,h2:4`."""
    return [HostInfo.from_string(host) for host in hosts_string.split(",")]


def parse_host_files(filename: str) -> str:
    """Return the hosts of a hostfile, whose lines are `h1 slots=4`, as a text for `parse_hosts`."""
    lines = [line.split() for line in Path(filename).read_text().splitlines() if line.strip()]
    return ",".join(f"{words[0]}:{words[1].partition('=')[2] if len(words) > 1 else 1}" for words in lines)


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Return the places of one rank per slot, up to `max_num_proc`, host by host.

    Raises:
        ValueError: there are fewer slots than `min_num_proc`.
    """
    places = [(host, local) for host in hosts for local in range(host.slots)][:max_num_proc]
    if len(places) < min_num_proc:
        raise ValueError(f"{len(places)} slots are fewer than the {min_num_proc} ranks that are asked for: add hosts")
    sizes = {host.hostname: sum(other is host for other, _ in places) for host in hosts}
    with_local = [[host.hostname for host, other in places if other == local] for _, local in places]
    return [
        SlotInfo(host.hostname, rank, local, peers.index(host.hostname), len(places), sizes[host.hostname], len(peers))
        for rank, ((host, local), peers) in enumerate(zip(places, with_local, strict=True))
    ]
