"""Ranks started by torchrun (torch.distributed.elastic)."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint
from distrun.runtime.world.environments.base import Environment

# torchrun --nproc-per-node 2 gives rank 1: RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0
# GROUP_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=46123 TORCHELASTIC_RESTART_COUNT=0
# TORCHELASTIC_RUN_ID=850b6222-1f75-41d3-88aa-873b994d9e42 ("none" unless --rdzv-id or --standalone in older releases)
_RANK = "RANK"
_SIZE = "WORLD_SIZE"
_LOCAL_RANK = "LOCAL_RANK"
_LOCAL_SIZE = "LOCAL_WORLD_SIZE"
_AGENT = "GROUP_RANK"
_AGENTS = "GROUP_WORLD_SIZE"
_RUN = "TORCHELASTIC_RUN_ID"
_RESTART = "TORCHELASTIC_RESTART_COUNT"
_MASTER_ADDR = "MASTER_ADDR"
_MASTER_PORT = "MASTER_PORT"


class Torchrun(Environment):
    name = "torchrun"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return _RUN in environ and _RANK in environ

    def topology(self) -> Topology:
        size, local_size, agents = self._number(_SIZE), self._number(_LOCAL_SIZE), self._number(_AGENTS)
        # Which hosts have a rank with this local rank is known only if every agent has the same number of ranks.
        if size != local_size * agents:
            raise UsageError(
                f"torchrun started {size} ranks on {agents} hosts, {local_size} of them on this one: "
                "give --nproc-per-node the same value on each, or start the script with `distrun`"
            )
        return Topology(
            rank=self._number(_RANK),
            size=size,
            local_rank=self._number(_LOCAL_RANK),
            local_size=local_size,
            cross_rank=self._number(_AGENT),
            cross_size=agents,
            hostname=socket.gethostname(),
        )

    def job_name(self) -> str:
        # The ranks of a restarted group must not find ranks that are left over from the group before.
        master = f"{self._text(_MASTER_ADDR)}:{self._text(_MASTER_PORT)}"
        restart = self._environ.get(_RESTART, "0")
        return f"torchrun.{self._text(_RUN)}.{master}.{restart}.{self._text(_AGENT)}"

    def endpoint(self) -> RendezvousEndpoint:
        return self._endpoint_at_master()
