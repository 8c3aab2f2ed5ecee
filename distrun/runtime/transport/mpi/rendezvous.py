"""The rendezvous endpoint for ranks that an MPI launcher started: rank 0 sends it to all ranks through MPI.

MPI's connections are not encrypted, so rank 0 seals the job key for each of the others with the public key that it has
sent. Only if a rank lacks the package cryptography is the key sent in plain text.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from distrun.errors import BootstrapError, UsageError
from distrun.host.endpoints import reserve_port
from distrun.host.interfaces import matching, own_interfaces, reachable
from distrun.host.ranks import list_ranks
from distrun.runtime.transport.mpi.requests import abort_at_exit, comm_world, keep
from distrun.runtime.transport.rendezvous.protocol import RendezvousEndpoint

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

    from distrun.host.sealing import KeyPair

_POLL_INTERVAL = 0.001  # seconds

_PUBLIC_SIZE = 32  # bytes
_PUBLIC_TAG = 0  # no other messages are sent before the end of the rendezvous

_reservations: list[socket.socket] = []


def find(rank: int, size: int, network: str, timeout: float) -> RendezvousEndpoint:
    """Return rank 0's endpoint: its addresses with a port, and a new job key. Collective over MPI_COMM_WORLD.

    Args:
        rank: the number of this rank.
        size: the number of ranks.
        network: interfaces and subnets that may be used. "" allows all.
        timeout: seconds to wait for the others.

    Raises:
        UsageError: `network` allows no interface of rank 0's host, or mpi4py has found another MPI than the launcher's.
        BootstrapError: another rank did not call this in time.
    """
    world = comm_world(
        rank,
        size,
        "let mpi4py load the MPI that the launcher belongs to (MPI4PY_LIBMPI=/path/to/libmpi.so; "
        "`python -m mpi4py --mpi-library` shows which it finds), or start the script with `distrun`",
    )
    deadline = time.monotonic() + timeout
    keys = _key_pair()
    own = np.frombuffer(bytes(_PUBLIC_SIZE) if keys is None else keys.public, np.uint8).copy()  # MPI wants it writable
    publics = _gather(world, own, deadline, timeout)
    told, key = _own_endpoint(network, keys, publics) if rank == 0 else (b"", "")
    text = np.frombuffer(told, np.uint8).copy()
    length = np.array([text.size], np.int64)
    _complete(world, lambda: world.Ibcast(length, 0), deadline, timeout)
    buffer = text if rank == 0 else np.empty(int(length[0]), np.uint8)
    _complete(world, lambda: world.Ibcast(buffer, 0), deadline, timeout)
    sentence, addresses, port, shown, public, sealed = json.loads(buffer.tobytes())
    if sentence:
        raise UsageError(sentence)
    if rank and keys is not None and sealed:
        key = keys.opener_from(bytes.fromhex(public)).open(bytes.fromhex(sealed[rank])).decode("ascii")
    return RendezvousEndpoint(tuple((address, port) for address in addresses), bytes.fromhex(key or shown))


def release() -> None:
    """Release the reserved port after the rendezvous."""
    while _reservations:
        _reservations.pop().close()


def _complete(world: MPI.Intracomm, start: Callable[[], MPI.Request], deadline: float, timeout: float) -> None:
    """Start a collective operation of MPI and wait for its end. Raise `BootstrapError` at the deadline."""
    if _await(world, lambda: [start()], deadline):
        raise BootstrapError(
            f"rank {world.rank} waited for {timeout:g} s in init() for the other ranks, some of which did not call "
            "it: see whether they are still starting (raise DISTRUN_START_TIMEOUT) or have ended"
        )


def _gather(world: MPI.Intracomm, own: NDArray[np.uint8], deadline: float, timeout: float) -> list[bytes]:
    """Return the public keys of all ranks on rank 0, and an empty list on the others.

    This uses messages, not a collective operation of MPI, which could not report which rank is missing.
    """
    if world.rank:
        _complete(world, lambda: world.Isend(own, 0, _PUBLIC_TAG), deadline, timeout)
        return []
    rows = np.empty((world.size, _PUBLIC_SIZE), np.uint8)
    rows[0] = own
    others = range(1, world.size)
    missing = _await(world, lambda: [world.Irecv(rows[rank], rank, _PUBLIC_TAG) for rank in others], deadline)
    if missing:
        late = list_ranks([others[place] for place in missing])
        raise BootstrapError(
            f"{late} of {world.size} did not call init() within {timeout:g} s: see whether they are still starting "
            "(raise DISTRUN_START_TIMEOUT) or have ended"
        )
    return [row.tobytes() for row in rows]


def _await(world: MPI.Intracomm, start: Callable[[], list[MPI.Request]], deadline: float) -> list[int]:
    """Start requests of MPI, and wait until all are complete or until `deadline`. Return the indices of incomplete
    ones."""
    from mpi4py import MPI

    try:
        requests = start()
        left = [place for place, request in enumerate(requests) if not request.Test()]
    except MPI.Exception as error:
        abort_at_exit()  # the other ranks are waiting in MPI
        raise BootstrapError(
            f"MPI does not connect rank {world.rank} with the others ({error}): see what it says above; it may have "
            "been given a network that is not there (--network, or --mca btl_tcp_if_include)"
        ) from None
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL)
        left = [place for place in left if not requests[place].Test()]
    if left:
        keep([requests[place] for place in left])
    return left


def _own_endpoint(network: str, keys: KeyPair | None, publics: Sequence[bytes]) -> tuple[bytes, str]:
    """Return rank 0's message to all ranks, and the job key that it has made.

    If the job cannot start, the message has a sentence about the reason instead, so that the others need not time out.
    `publics` are the public keys of all ranks, zeros for a rank that has none.
    """
    try:
        present = own_interfaces()
        chosen = matching(present, network, f"host {socket.gethostname()!r}")
    except UsageError as error:
        return json.dumps([str(error), [], 0, "", "", []]).encode(), ""
    addresses = [interface.address for interface in reachable(chosen) or chosen]
    release()
    _reservations.append(reserve_port())
    key = secrets.token_hex(32)
    public, sealed = "", list[str]()
    if keys is not None and all(map(any, publics)):
        public, sealed = keys.public.hex(), [keys.seal_for(other).seal(key.encode()).hex() for other in publics]
    shown = "" if sealed else key
    return json.dumps(["", addresses, _reservations[0].getsockname()[1], shown, public, sealed]).encode(), key


def _key_pair() -> KeyPair | None:
    """Return a key pair to receive the job key, or None if the package cryptography is missing."""
    try:
        from distrun.host.sealing import KeyPair
    except ImportError:
        return None
    return KeyPair("job key by MPI")
