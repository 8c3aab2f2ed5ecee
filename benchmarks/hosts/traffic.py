"""Traffic: the bytes that an allreduce of 16 MB sends over the network, read from the hosts' interfaces."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from benchmarks.hosts.namespaces import INTERFACE
from benchmarks.hosts.ranks import DISTRUN, GLOO, RemoteRank, meet
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary
from benchmarks.support.ranks import OPENMPI, run

NBYTES = 16 << 20
TIMES = 10


def compare(rank: RemoteRank) -> Comparison:
    """Compare the traffic of all programs."""
    comparison = Comparison(
        "bytes that a host sends per allreduce of 16 MB (16.8 million bytes), headers included",
        "ranks",
        [DISTRUN, GLOO, OPENMPI],
        [(GLOO, DISTRUN), (OPENMPI, DISTRUN)],
        notes=["Of the two hosts, the one that sends more; from the statistics of its interface."],
        unit="B",
    )
    rank.note(comparison)
    reductions = rank.reductions(NBYTES // 4)
    sent = {name: _sent(rank, reduction.run) for name, reduction in reductions.items()}
    results = {name: Summary(value, (value, value), 1) for name, value in sent.items()}
    comparison.add(f"2 hosts x {rank.size // 2}", results)
    return comparison


def _sent(rank: RemoteRank, reduce: Callable[[], object]) -> float:
    """Return the bytes that a reduction sends. Ranks of a host may read its counter one after another."""
    rank.mpi.Barrier()
    before = _counter()
    rank.mpi.Barrier()
    for _ in range(TIMES):
        reduce()
    rank.mpi.Barrier()
    sent: dict[str, int] = dict(rank.mpi.allgather((socket.gethostname(), _counter() - before)))
    return max(sent.values()) / TIMES


def _counter() -> int:
    """Return the bytes that this host has sent: the ninth number.

    A line of /proc/net/dev is `eth0: 1296 16 0 0 0 0 0 0 806 11 0 0 0 0 0 0`.
    """
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counters.split()[8])
    raise SystemExit(f"there is no {INTERFACE} here: start me with python -m benchmarks")


if __name__ == "__main__":
    run(meet, compare)
