"""The place of the rendezvous where an MPI launcher started the ranks: MPI itself tells them."""

from __future__ import annotations

import json
import secrets
import socket

import numpy as np

from distrun.runtime.interfaces import interfaces, matching
from distrun.runtime.rendezvous import Place

_reservations: list[socket.socket] = []


def mpi_place(network: str | None) -> Place:
    """Collective over MPI_COMM_WORLD: rank 0's addresses, a port of it, and a new job key.

    Args:
        network: interfaces and subnets that may be used; None: all.

    Raises:
        UsageError: `network` allows no interface of this machine.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    text = _own_place(network) if world.rank == 0 else b""
    length = np.array([len(text)], np.int64)
    world.Bcast([length, MPI.INT64_T], 0)
    buffer = np.frombuffer(text, np.uint8).copy() if world.rank == 0 else np.empty(int(length[0]), np.uint8)
    world.Bcast([buffer, MPI.BYTE], 0)
    addresses, port, key = json.loads(buffer.tobytes())
    return Place(tuple((address, port) for address in addresses), bytes.fromhex(key))


def _own_place(network: str | None) -> bytes:
    present = matching(network) if network else interfaces()
    outside = [interface.address for interface in present if not interface.ip.is_loopback]
    # The port stays ours until rank 0 listens at it: it is bound here, and shared with other sockets of this user.
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind(("", 0))
    _reservations[:] = [reservation]
    addresses = outside or [interface.address for interface in present]
    return json.dumps([addresses, reservation.getsockname()[1], secrets.token_hex(32)]).encode()
