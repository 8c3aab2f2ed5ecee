"""A simulator of the start: from the moment at which all processes are there until the last rank has the table.

All ranks but rank 0 connect with it, by the real code (see `rendezvous`). They have tried before it listened, and come
within the longest pause between two attempts. When all are there, rank 0 sends the table to one after the other. On
each connection the bytes under way grow as TCP's window does at first, so a long table takes several round trips.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

from benchmarks.scale.machine import Machine
from benchmarks.scale.rendezvous import Rendezvous
from distrun.host.connections.listener import MAX_HANDSHAKES
from distrun.host.endpoints import free_port
from distrun.runtime.transport.rendezvous.protocol import Member, RendezvousEndpoint, pack_message
from distrun.runtime.transport.rendezvous.server import Server

_FIRST_WINDOW = 10 * 1448  # bytes under way that TCP begins with


@dataclass(frozen=True)
class Cost:
    """The processor seconds of a start, as they are on one machine."""

    connection: float
    """Rank 0's of a connection, from its acceptance to the acknowledgement."""
    pack: float
    """Rank 0's of making the table."""
    unpack: float
    """A rank's of reading it."""


@dataclass(frozen=True)
class Started:
    """The result of a start: seconds since all processes were there."""

    met: float
    """All connections are made."""
    told: float
    """The last rank has the table; infinite if the limit was not enough."""
    made: int
    """The connections that rank 0 had by then."""
    dropped: int
    """The handshakes that rank 0 had given up, and clients have begun again."""
    nbytes: int
    """The length of the table."""


def members(hosts: int, ranks: int) -> list[Member]:
    """Return the members of a job with so many hosts, and ranks on each."""
    job = "3f9a0c5e7b1d24680ace13579bdf0246"
    found = []
    for rank in range(hosts * ranks):
        host = rank // ranks
        name, address = f"node{host:04}", f"10.0.{host >> 8}.{host & 255}"
        scattered = rank * 7919 % 27001  # process ids and ports follow no pattern
        found.append(Member(rank, f"{job} {name}", name, 4000 + scattered, address, 32768 + scattered))
    return found


def table(everybody: Iterable[Member]) -> bytes:
    """Return the message with all members, as rank 0 sends it."""
    agreed = dict.fromkeys(("fusion_threshold", "wire_dtype", "algorithm", "mpi", "may_offer", "fan_out"), 0)
    return pack_message({"members": [astuple(member) for member in everybody], "agreed": agreed})


def start(
    hosts: int, ranks: int, machine: Machine, cost: Cost, is_led: bool, limit: float, most: int = MAX_HANDSHAKES
) -> Started:
    """Return how long the start of a job takes.

    Args:
        hosts: their number.
        ranks: those of each.
        machine: the hosts.
        cost: what it costs the processors.
        is_led: whether the first rank of each host connects for all of them.
        limit: seconds for the connections.
        most: the handshakes that rank 0 has under way at once.
    """
    everybody = members(hosts, ranks)
    message = table(everybody)
    clients = everybody[ranks::ranks] if is_led else everybody[1:]
    rendezvous = Rendezvous(machine, cost.connection / 4)
    rendezvous.run(clients, limit, most)
    met, made, dropped = rendezvous.now, rendezvous.made, rendezvous.dropped
    if made < 2 * len(clients):
        return Started(met, float("inf"), made, dropped, len(message))
    now = wire = met + cost.pack
    last, trips = now, _round_trips(len(message)) * 2 * machine.latency
    for _ in clients:
        now += machine.system_call + len(message) / machine.copying + trips
        wire = max(wire, now - trips) + len(message) / machine.rate
        last = max(now, wire) + machine.latency + machine.wake
    if is_led:  # a leader hands it to the other ranks of its host
        last += (ranks - 1) * len(message) / machine.copying + machine.wake
    return Started(met, last + cost.unpack, made, dropped, len(message))


def _round_trips(nbytes: int) -> int:
    """Return how many round trips pass before the kernel has taken so many bytes on a new connection: it holds two
    windows, and a window doubles with each trip."""
    acknowledged, window, trips = 0, _FIRST_WINDOW, 0
    while acknowledged + 2 * window < nbytes:
        acknowledged, window, trips = acknowledged + window, 2 * window, trips + 1
    return trips


def calibrated(environ: Mapping[str, str], count: int = 64, runs: int = 3) -> float:
    """Return the processor seconds that a connection takes rank 0 here: the least of some rendezvous with real clients,
    which are threads of another process."""
    taken = []
    for _ in range(runs):
        port, key = free_port(), secrets.token_bytes(32)
        server = Server(
            count + 1,
            Member(0, "a", "a", 1, "", 0),
            RendezvousEndpoint((("127.0.0.1", port),), key),
            60.0,
        )
        command = [sys.executable, "-m", "benchmarks.scale.ranks", "join", str(count), str(port), key.hex()]
        with subprocess.Popen(command, env={**environ}) as clients:
            begun = time.thread_time()
            server.run({}, None).close()
            taken.append((time.thread_time() - begun) / (2 * count))
        assert not clients.returncode
    return min(taken)


def measured(connection: float, hosts: int, ranks: int) -> Cost:
    """Return the cost of a start whose table has so many members, on this machine."""
    everybody = members(hosts, ranks)
    packing, reading = [], []
    for _ in range(5):
        begun = time.thread_time()
        message = table(everybody)
        packed = time.thread_time()
        assert [Member(*row) for row in json.loads(zlib.decompress(message[4:]))["members"]] == everybody
        packing.append(packed - begun)
        reading.append(time.thread_time() - packed)
    return Cost(connection, min(packing), min(reading))
