"""Scale: what it takes to decide about an operation, by real ranks, by simulated ones, and by ten thousand of these."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from benchmarks.scale import data_tables, failure_tables, real, start_tables
from benchmarks.scale.machine import CLUSTER, Machine
from benchmarks.scale.real import hosts_of
from benchmarks.scale.simulator import Simulation, latencies
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary, exactly, summary
from distrun.runtime.transport.control.control_tree import FAN_OUT

REAL, SIMULATED = "real", "simulated"
SEEN = (((1, 1), 1), ((2, 2), 1), ((1,) * 8, 2), ((4,) * 4, 2), ((8,) * 4, 2), ((8,) * 8, 4))
"""The ranks of hosts, and fan-outs, of jobs that run both ways."""
UNSEEN = ((32, 8, 8), (128, 8, 8), (1250, 8, 4), (1250, 8, 8), (1250, 8, 32))
"""Hosts, ranks of each, and fan-outs of jobs that are simulated alone."""


def compare(quick: bool, environ: Mapping[str, str]) -> Iterator[Comparison]:
    """Yield tables of the negotiation, the data, the start, and the failure of a host: real ranks beside simulated ones
    in each of them, and many simulated ones."""
    rounds = 20 if quick else 100
    yield _seen(rounds, environ)
    yield _unseen(5 if quick else 20)
    yield from data_tables.compare(quick, environ)
    yield from start_tables.compare(quick, environ)
    yield from failure_tables.compare(environ)


def _seen(rounds: int, environ: Mapping[str, str]) -> Comparison:
    here = Machine(cores=os.cpu_count() or 1, wake=60e-6, latency=10e-6, rate=5e9, system_call=8e-6)
    comparison = Comparison(
        "from the last submission of an operation to the last rank's decision, on this machine alone",
        "hosts x ranks, fan-out",
        [REAL, SIMULATED],
        [(SIMULATED, REAL)],
        notes=[
            f"{REAL}: processes that believe that they are on several hosts and execute nothing, over loopback; "
            f"{SIMULATED}: the same negotiation, one rank after the other, on {here.cores} cores for all hosts, "
            f"{here.wake * 1e6:g} us to wake a rank and {here.system_call * 1e6:g} us for a message over TCP."
        ],
    )
    for counts, fan_out in SEEN:
        fan_outs = {**environ, "DISTRUN_FAN_OUT": str(fan_out)}
        seconds = real.run(counts, ["negotiate", str(rounds)], fan_outs)[0]
        simulated = summary(list(latencies(_on_one_machine(counts, fan_out, here), rounds)))
        title = f"{len(counts)} x {counts[0]}, {fan_out}"
        comparison.add(title, {REAL: Summary(seconds, (seconds, seconds), rounds), SIMULATED: simulated})
    return comparison


def _on_one_machine(counts: tuple[int, ...], fan_out: int, machine: Machine) -> Simulation:
    simulation = Simulation(hosts_of(counts), fan_out, machine)
    simulation.share_cores()
    return simulation


def _unseen(rounds: int) -> Comparison:
    programs = ["in full", "repeated", "link"]
    comparison = Comparison(
        "from submitting an operation to its decision on the slowest rank, simulated",
        "hosts x ranks, fan-out",
        programs,
        [],
        notes=[
            f"{programs[0]}: an operation that is new to all ranks; {programs[1]}: one that all have submitted before, "
            f"median of {rounds}; {programs[2]}: the part of links in it, twice the depth of the tree. Hosts of "
            f"{CLUSTER.cores} cores, {CLUSTER.rate * 8 / 1e9:g} Gbit/s, {CLUSTER.latency * 1e6:g} us between two; "
            f"{CLUSTER.wake * 1e6:g} us to wake a rank, {CLUSTER.system_call * 1e6:g} us for a system call; Python is "
            "as fast as on this machine. The default fan-out is "
            f"{FAN_OUT}."
        ],
    )
    for count, local, fan_out in UNSEEN:
        simulation = Simulation(hosts_of((local,) * count), fan_out, CLUSTER)
        first = simulation.operation(simulation.requests[0])
        before = {rank.number: (rank.messages, rank.nbytes) for rank in simulation.ranks.values()}
        seconds = list(latencies(simulation, rounds))
        depth = _depth(count, fan_out)
        results = {
            programs[0]: exactly(first),
            programs[1]: summary(seconds),
            programs[2]: exactly(2 * depth * CLUSTER.latency),
        }
        title = f"{count:,} x {local}, {fan_out}"
        comparison.add(title, results)
        busiest = max(simulation.ranks.values(), key=lambda rank: rank.messages - before[rank.number][0])
        sent, nbytes = busiest.messages - before[busiest.number][0], busiest.nbytes - before[busiest.number][1]
        connections = max(rank.peers for rank in simulation.ranks.values())
        comparison.notes.append(
            f"{title}: at most {connections} neighbours, with two connections each; the busiest rank sends "
            f"{sent / (rounds + 4):.3g} messages of {nbytes / max(1, sent):.3g} bytes per operation."
        )
    return comparison


def _depth(hosts: int, fan_out: int) -> int:
    depth, host = 0, hosts - 1
    while host:
        depth, host = depth + 1, (host - 1) // fan_out
    return depth
