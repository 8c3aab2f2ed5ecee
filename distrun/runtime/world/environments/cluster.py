"""Ranks in the containers of a cluster that starts the same container once per host."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.host import clusters
from distrun.host.clusters import HostPlace
from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint
from distrun.runtime.world.environments.base import Environment, likely_ports

# Most clusters start one process per host. Azure ML starts the configured number, and numbers them:
#   RANK=9 WORLD_SIZE=16 LOCAL_RANK=1, on the second of two hosts
_RANK = "RANK"
_SIZE = "WORLD_SIZE"
_LOCAL_RANK = "LOCAL_RANK"
_LOCAL_SIZE = "LOCAL_WORLD_SIZE"


class Cluster(Environment):
    """Each container's process is a rank, and host 0 has rank 0."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        place = clusters.detect(environ)
        assert place is not None
        self._place: HostPlace = place
        self.name = place.cluster

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        if _LOCAL_SIZE in environ:  # another launcher has described the rank more precisely
            return False
        place = clusters.detect(environ)
        return place is not None and (place.hosts > 1 or _is_numbered(environ))

    def topology(self) -> Topology:
        place, here = self._place, socket.gethostname()
        if not _is_numbered(self._environ):
            return Topology(place.index, place.hosts, 0, 1, place.index, place.hosts, here)
        rank, size, local_rank = self._number(_RANK), self._number(_SIZE), self._number(_LOCAL_RANK)
        local_size = size // place.hosts
        if local_size * place.hosts != size or rank != place.index * local_size + local_rank:
            raise UsageError(
                f"{_RANK}={rank}, {_SIZE}={size} and {_LOCAL_RANK}={local_rank} do not fit host {place.index} of "
                f"{place.hosts}: let {self.name} start as many processes on each, or start the script with `distrun`"
            )
        return Topology(rank, size, local_rank, local_size, place.index, place.hosts, here)

    def job_name(self) -> str:
        return f"{self.name}.{self._place.job}.{self._place.index}"

    def endpoint(self) -> RendezvousEndpoint:
        # Host 0 may not know its own address, but its name resolves to all addresses that it has.
        address = socket.gethostname() if self._place.index == 0 else self._place.leader
        ports = likely_ports(f"{self.name}.{self._place.job}")
        return RendezvousEndpoint(tuple((address, port) for port in ports), self._needed_key())


def _is_numbered(environ: Mapping[str, str]) -> bool:
    """Whether the cluster has given each process its own rank and local rank."""
    return all(name in environ for name in (_RANK, _SIZE, _LOCAL_RANK))
