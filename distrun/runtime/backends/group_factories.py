"""Group factories: make the backends of process sets, by shared memory or MPI on one host, and links between hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from distrun.runtime.backends.base import Backend
from distrun.runtime.backends.groups import GroupFactory
from distrun.runtime.backends.hierarchical import HierarchicalBackend
from distrun.runtime.backends.rail import first_partners
from distrun.runtime.backends.shared_memory import SharedMemoryBackend
from distrun.runtime.operations.reduction import Sum, reduction
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import LinkMaker
from distrun.runtime.transport.local_group import LocalGroup
from distrun.runtime.transport.local_subgroup import LocalSubgroups

if TYPE_CHECKING:
    from distrun.runtime.transport.mpi.requests import Requests


class OneHostFactory(GroupFactory):
    """Makes the backends of a job on one host."""

    def __init__(self, local_group: LocalGroup, world: Backend, requests: Requests | None = None) -> None:
        """`requests` are the MPI requests on the communicator of all ranks, if MPI moves the bytes."""
        self._subgroups = LocalSubgroups(local_group)
        self._world = world
        self._requests = requests

    def make(self, ranks: tuple[int, ...], what: str) -> Backend | None:
        local_ranks = self._subgroups.add(ranks)
        self._world.barrier(what)  # all areas are ready, and MPI's blocking call below will not wait for long
        if local_ranks is None:
            return None
        if self._requests is None:
            return SharedMemoryBackend(local_ranks)
        from distrun.runtime.backends.mpi import MPIBackend

        return MPIBackend(local_ranks, self._requests.of_subgroup(local_ranks))

    def release(self, ranks: tuple[int, ...]) -> None:
        self._subgroups.remove(ranks)


class AcrossHostsFactory(GroupFactory):
    """Makes the backends of a job on several hosts. The ranks of a set may be on one host."""

    def __init__(
        self,
        local_group: LocalGroup,
        layout: HostLayout,
        world: Backend,
        link_maker: LinkMaker,
        wire: str,
        algorithm: str,
    ) -> None:
        """`wire` and `algorithm`: see `HierarchicalBackend`."""
        self._subgroups = LocalSubgroups(local_group)
        self._layout = layout
        self._world = world
        self._link_maker = link_maker
        self._wire = wire
        self._algorithm = algorithm

    def make(self, ranks: tuple[int, ...], what: str) -> Backend | None:
        def tell(number: int) -> Sequence[int]:
            """Return the numbers that all ranks of the job pass, by rank. This is also a barrier."""
            numbers = np.zeros(self._world.size, np.int64)
            numbers[self._world.rank] = number
            self._world.allreduce([numbers], [numbers], reduction("int64", Sum, numbers.size, 1.0, 1.0), what)
            told: list[int] = numbers.tolist()
            return told

        local = self._here(ranks)
        local_ranks = self._subgroups.add(local) if local else None
        if local_ranks is None:
            tell(0)
            return None
        if len(local) == len(ranks):
            tell(0)
            return SharedMemoryBackend(local_ranks)
        layout = self._layout.of_set(ranks)
        peers = {host: ranks[position] for host, position in layout.peers.items()}
        links = self._link_maker.make(local_ranks, peers, first_partners(layout), tell)
        return HierarchicalBackend(local_ranks, layout, links, self._wire, self._algorithm)

    def release(self, ranks: tuple[int, ...]) -> None:
        local = self._here(ranks)
        if local:
            self._subgroups.remove(local)

    def _here(self, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(rank for rank in ranks if rank in self._layout.local_ranks)
