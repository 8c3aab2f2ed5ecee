"""Makes the variables of ranks from their locations, for the one world of a job or each generation of an elastic one.

Pure, and linear in the number of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from distrun.contract import horovod
from distrun.contract.launch import LaunchContract
from distrun.host.endpoints import format_endpoint


@dataclass(frozen=True)
class RankLocation:
    """The location of a rank: a host and a slot on it."""

    host: str
    slot: int
    """Its slot on the host. The order of slots is the order of local ranks."""


@dataclass(frozen=True)
class MasterEndpoint:
    """The endpoint where the ranks of a world meet."""

    master_addr: str
    master_port: int
    rendezvous: str = ""
    """See `LaunchContract.rendezvous`."""


@dataclass(frozen=True)
class RankVariables:
    """Makes the variables of ranks from what they have in common."""

    job: str
    key: str = field(repr=False)
    exports: frozenset[str] = frozenset()
    """The names that the user exports, which are left alone: -x MASTER_PORT=29500 is obeyed."""
    openmpi: bool = False
    torchrun: bool = False
    name: str = "none"
    """The job's name, as torchrun calls it."""
    horovod: bool = False
    tf_config: bool = False
    elastic: bool = False
    max_restarts: int = 0
    restarts: int = 0
    """The number of times that a batch scheduler started the whole job again."""

    def contracts(
        self, places: Sequence[RankLocation], endpoint: MasterEndpoint, generation: int = 1
    ) -> list[LaunchContract]:
        """Return the contracts of a world's ranks, whose places are in rank order."""
        slots: dict[str, list[int]] = {}  # the hosts are in the order of their lowest ranks
        for place in places:
            slots.setdefault(place.host, []).append(place.slot)
        local_ranks = {(host, slot): number for host, own in slots.items() for number, slot in enumerate(sorted(own))}
        # With hosts of 2, 1 and 2 ranks, local rank 1 exists on the first and third host only: there it has the cross
        # ranks 0 and 1.
        cross_sizes: Counter[int] = Counter()
        cross_ranks: dict[tuple[str, int], int] = {}
        for host, own in slots.items():
            for local_rank in range(len(own)):
                cross_ranks[host, local_rank] = cross_sizes[local_rank]
                cross_sizes[local_rank] += 1
        made = []
        for rank, place in enumerate(places):
            local_rank = local_ranks[place.host, place.slot]
            made.append(
                LaunchContract(
                    job=self.job,
                    key=self.key,
                    rank=rank,
                    size=len(places),
                    local_rank=local_rank,
                    local_size=len(slots[place.host]),
                    cross_rank=cross_ranks[place.host, local_rank],
                    cross_size=cross_sizes[local_rank],
                    hostname=place.host,
                    master_addr=endpoint.master_addr,
                    master_port=endpoint.master_port,
                    rendezvous=endpoint.rendezvous,
                    generation=generation,
                    slot=place.slot,
                    restart=self.restarts + generation - 1,
                )
            )
        return made

    def of(self, contract: LaunchContract, node: int, nodes: int) -> dict[str, str]:
        """Return the variables of one rank, whose host is number `node` of `nodes`."""
        variables = contract.to_environ()
        variables["JAX_COORDINATOR_ADDRESS"] = format_endpoint(contract.master_addr, contract.master_port)
        if self.tf_config:
            variables["TF_CONFIG"] = ""  # filled in when all hosts have reported their ports
        if self.openmpi:
            variables |= contract.openmpi_environ()
        if self.horovod:
            variables |= horovod.rank_variables(contract, self.elastic)
        if self.torchrun:
            variables |= contract.torchrun_environ(self.name, node, nodes, self.max_restarts)
        return {name: value for name, value in variables.items() if name not in self.exports}
