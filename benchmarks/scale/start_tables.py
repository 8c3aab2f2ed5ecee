"""Tables of the start: how long the ranks of many hosts need to find each other."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

from benchmarks.scale import real
from benchmarks.scale.machine import CLUSTER
from benchmarks.scale.start import Started, calibrated, measured, start
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary, exactly
from distrun.host.connections.listener import MAX_HANDSHAKES

HOSTS, RANKS = (2, 8, 64, 256, 1250), 8
SEEN = ((4, 2), (4, 4), (8, 4))
"""Hosts, and ranks of each, that run both ways."""
LIMIT = 30.0
"""Seconds after which a start is given up."""
REAL, SIMULATED = "real", "simulated"
BY_RANK, ROOMY, BY_HOST = "each rank connects", "no handshake dropped", "one rank of each host"


def compare(quick: bool, environ: Mapping[str, str]) -> Iterator[Comparison]:
    """Yield two tables: real ranks beside simulated ones, and many simulated ones."""
    connection = calibrated(environ)
    yield _seen(3 if quick else 9, connection, environ)
    yield _unseen(connection)


def _seen(runs: int, connection: float, environ: Mapping[str, str]) -> Comparison:
    comparison = Comparison(
        "from the start of the rendezvous until the last rank has the table, on this machine alone",
        "hosts x ranks",
        [REAL, SIMULATED],
        [(SIMULATED, REAL)],
        notes=[
            f"{REAL}: processes that have imported everything; median of {runs}. Most of it is the pause between two "
            "attempts of those that came before rank 0 listened: a quarter of a second at most in the simulation, and "
            "in reality one that grows from 10 ms on."
        ],
    )
    here = replace(CLUSTER, cores=os.cpu_count() or 1, wake=60e-6, latency=10e-6, rate=20e9, system_call=8e-6)
    for hosts, ranks in SEEN:
        seconds = median(_real(hosts, ranks, environ) for _ in range(runs))
        cost = measured(connection, hosts, ranks)
        simulated = start(hosts, ranks, here, cost, False, LIMIT).told
        results = {REAL: Summary(seconds, (seconds, seconds), runs), SIMULATED: exactly(simulated)}
        comparison.add(f"{hosts} x {ranks}", results)
    return comparison


def _real(hosts: int, ranks: int, environ: Mapping[str, str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        spans = real.run((ranks,) * hosts, ["start", folder, str(hosts * ranks)], environ)
    return float(max(ended for _, ended in spans) - spans[0][0])


def _unseen(connection: float) -> Comparison:
    comparison = Comparison(
        "from the moment at which all processes are there until the last rank has the table, simulated",
        f"hosts x {RANKS}",
        [BY_RANK, ROOMY, BY_HOST],
        [],
        notes=[
            f"{BY_RANK}: with {MAX_HANDSHAKES:,} handshakes under way at most, the oldest being dropped; "
            f"{ROOMY}: if there were room for all; {BY_HOST}: if it connected for the others, and handed the table to "
            f"them. Rank 0 takes {connection * 1e6:.0f} us of a core for a connection, the least of measurements on "
            "this machine with real ones; the real listener and handshakes, on simulated sockets. Clients come within "
            "the quarter of a second in which they try again."
        ],
    )
    for hosts in HOSTS:
        cost = measured(connection, hosts, RANKS)
        plain = start(hosts, RANKS, CLUSTER, cost, False, LIMIT)
        roomy = start(hosts, RANKS, CLUSTER, cost, False, LIMIT, most=1 << 20)
        led = start(hosts, RANKS, CLUSTER, cost, True, LIMIT)
        found = {BY_RANK: plain, ROOMY: roomy, BY_HOST: led}
        times = {name: exactly(each.told) for name, each in found.items() if math.isfinite(each.told)}
        comparison.add(f"{hosts:,}", times)
        comparison.notes.append(
            f"{hosts:,}: {plain.made:,} connections at rank 0 by then, {plain.dropped:,} handshakes dropped; "
            f"{led.made:,} with one rank of each host, {led.dropped:,} dropped. A table of {_kilobytes(plain)}."
        )
    return comparison


def _kilobytes(started: Started) -> str:
    return f"{started.nbytes / 1000:.1f} KB"
