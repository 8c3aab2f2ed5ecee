"""The rendezvous `distrun://` of torch.distributed: the ranks of a job find each other as in `distrun.init`.

    torch.distributed.init_process_group("distrun", init_method="distrun://")

torch's own `env://` needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which mpirun and srun do not set. This one
needs only the launcher: rank 0 serves a store at a free port, and sends its address to the others.
"""

from __future__ import annotations

from urllib.parse import parse_qs, urlparse

from torch._C._distributed_c10d import Store, TCPStore

from distrun.contract import settings
from distrun.errors import UsageError
from distrun.host.interfaces import matching, own_interfaces, reachable
from distrun.runtime.collectives.objects import broadcast_object
from distrun.runtime.world import world
from distrun.torch_distributed import joining

_LOOPBACK = "127.0.0.1"


def meet(url: str) -> tuple[Store, int, int]:
    """Return a store that all ranks of the job share, this rank, and the number of ranks, when all have joined.

    Args:
        url: `distrun://`; torch adds the rank and the world size that `init_process_group` was given.

    Raises:
        UsageError: this rank and world size differ from the launcher's.
        BootstrapError: the other ranks did not come within the start timeout.
    """
    joining.join_job()
    rank, size = world.rank(), world.size()
    given = parse_qs(urlparse(url).query)
    for name, value in (("rank", rank), ("world_size", size)):
        if name in given and given[name] != [str(value)]:
            raise UsageError(
                f"{name}={given[name][0]} in init_process_group, and the launcher says {value}: leave it out with "
                "init_method='distrun://'"
            )
    store = TCPStore(_address(), 0, None, True, wait_for_workers=False) if rank == 0 else None
    if size > 1:
        address, port = broadcast_object((store.host, store.port) if store is not None else None)
        store = store or TCPStore(address, port, None, False)
    assert store is not None
    return store, rank, size


def _address() -> str:
    """Return an address of this host (rank 0's) that all ranks can reach."""
    topology = world.topology()
    if topology.local_size == topology.size:
        return _LOOPBACK
    allowed = matching(reachable(own_interfaces()), settings.current().network, f"host {topology.hostname!r}")
    return allowed[0].address if allowed else _LOOPBACK
