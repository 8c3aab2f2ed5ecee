"""The endpoint of the rendezvous where an MPI launcher started the ranks: MPI itself tells it to them."""

from __future__ import annotations

import json
import secrets
import socket
import time
from typing import TYPE_CHECKING

import numpy as np

from distrun.errors import BootstrapError, UsageError
from distrun.host.endpoints import reserve_port
from distrun.host.interfaces import matching, own_interfaces, reachable
from distrun.runtime.mpi.requests import abort_at_exit, comm_world, keep
from distrun.runtime.rendezvous.protocol import RendezvousEndpoint

if TYPE_CHECKING:
    from mpi4py import MPI

_POLL_INTERVAL = 0.001  # seconds

_reservations: list[socket.socket] = []


def find(rank: int, size: int, network: str, timeout: float) -> RendezvousEndpoint:
    """Return rank 0's addresses with a port, and a new job key. Collective over MPI_COMM_WORLD.

    Args:
        rank: the number of this rank.
        size: the number of ranks.
        network: interfaces and subnets that may be used; empty: all.
        timeout: seconds to wait for the others.

    Raises:
        UsageError: `network` allows no interface of rank 0's host, or mpi4py has found another MPI than the launcher's.
        BootstrapError: the others did not come in time.
    """
    world = comm_world(
        rank,
        size,
        "let mpi4py load the MPI that the launcher belongs to (MPI4PY_LIBMPI=/path/to/libmpi.so; "
        "`python -m mpi4py --mpi-library` shows which it finds), or start the script with `distrun`",
    )
    deadline = time.monotonic() + timeout
    text = np.frombuffer(_own_endpoint(network) if rank == 0 else b"", np.uint8).copy()  # MPI wants it writable
    length = np.array([text.size], np.int64)
    _share(world, length, deadline, timeout)
    buffer = text if rank == 0 else np.empty(int(length[0]), np.uint8)
    _share(world, buffer, deadline, timeout)
    sentence, addresses, port, key = json.loads(buffer.tobytes())
    if sentence:
        raise UsageError(sentence)
    return RendezvousEndpoint(tuple((address, port) for address in addresses), bytes.fromhex(key))


def release() -> None:
    """Release the port: the ranks have met."""
    while _reservations:
        _reservations.pop().close()


def _share(
    world: MPI.Intracomm, array: np.ndarray[tuple[int], np.dtype[np.generic]], deadline: float, timeout: float
) -> None:
    """Broadcast rank 0's array; raises `BootstrapError` at the deadline."""
    try:
        request = world.Ibcast(array, 0)
        done = bool(request.Test())
    except _errors() as error:
        abort_at_exit()  # the others wait
        raise BootstrapError(
            f"MPI does not connect rank {world.rank} with the others ({error}): see what it says above; it may have "
            "been given a network that is not there (--network, or --mca btl_tcp_if_include)"
        ) from None
    while not done:
        if time.monotonic() >= deadline:
            keep([request])
            raise BootstrapError(
                f"rank {world.rank} waited for {timeout:g} s in init() for the other ranks, some of which did not call "
                "it: see whether they are still starting (raise DISTRUN_START_TIMEOUT) or have ended"
            )
        time.sleep(_POLL_INTERVAL)
        done = bool(request.Test())


def _errors() -> type[Exception]:
    from mpi4py import MPI

    return MPI.Exception


def _own_endpoint(network: str) -> bytes:
    """Return what rank 0 has to tell; a sentence when the job cannot start, for which the others should not wait."""
    try:
        present = own_interfaces()
        chosen = matching(present, network, f"host {socket.gethostname()!r}")
    except UsageError as error:
        return json.dumps([str(error), [], 0, ""]).encode()
    addresses = [interface.address for interface in reachable(chosen) or chosen]
    release()
    _reservations.append(reserve_port())
    return json.dumps(["", addresses, _reservations[0].getsockname()[1], secrets.token_hex(32)]).encode()
