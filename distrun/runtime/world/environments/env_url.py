"""Ranks started with RANK and WORLD_SIZE, as torch.distributed's `env://` expects them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from distrun.contract.topology import Topology
from distrun.errors import UsageError
from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint
from distrun.runtime.world.environments.base import Environment, even_topology

# The Kubeflow training operator: RANK=1 WORLD_SIZE=4 MASTER_ADDR=job-master-0 MASTER_PORT=23456, nothing local
# By hand on one host:            RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
_RANK = "RANK"
_SIZE = "WORLD_SIZE"
_LOCAL_RANK = "LOCAL_RANK"
_LOCAL_SIZE = "LOCAL_WORLD_SIZE"
_MASTER_ADDR = "MASTER_ADDR"
_MASTER_PORT = "MASTER_PORT"
_THIS_HOST = ("localhost", "127.0.0.1", "::1")


class EnvUrl(Environment):
    name = "a launcher for env:// (RANK, WORLD_SIZE)"

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(environ)
        self._alone = f"env.{uuid.uuid4().hex}"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return _RANK in environ and _SIZE in environ

    def topology(self) -> Topology:
        rank, size = self._number(_RANK), self._number(_SIZE)
        return even_topology(rank, size, *self._local(rank, size))

    def job_name(self) -> str:
        if self._number(_SIZE) == 1:
            return self._alone  # no master is needed: whatever else is set, this rank is the only one
        return f"env.{self._text(_MASTER_ADDR)}:{self._text(_MASTER_PORT)}"

    def endpoint(self) -> RendezvousEndpoint:
        return self._endpoint_at_master()

    def _local(self, rank: int, size: int) -> tuple[int, int]:
        """Return (local_rank, local_size), if the variables contain them or there is only one possibility."""
        if _LOCAL_RANK in self._environ and _LOCAL_SIZE in self._environ:
            return self._number(_LOCAL_RANK), self._number(_LOCAL_SIZE)
        # No other host can reach a master that is called localhost, so all ranks are here.
        if size == 1 or self._environ.get(_MASTER_ADDR) in _THIS_HOST:
            return rank, size
        raise UsageError(
            f"{_RANK}={rank} and {_SIZE}={size} do not say which ranks share a host: set {_LOCAL_RANK} and "
            f"{_LOCAL_SIZE} as well (0 and 1 for one rank per host), or start the script with `distrun`"
        )
