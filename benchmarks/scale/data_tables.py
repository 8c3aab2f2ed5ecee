"""Tables of the data: how long an allreduce between hosts takes, and what hosts send each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.scale import real
from benchmarks.scale.allreduce import mirror, seconds, seconds_with_slow, traces_of
from benchmarks.scale.machine import CLUSTER, Machine
from benchmarks.scale.traces import KINDS
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import Summary, exactly
from distrun.runtime.backends.algorithms.choice import choose
from distrun.runtime.backends.algorithms.tree import Tree

HOSTS, RANKS = (2, 8, 64, 1250), 8
GIGABITS = (1, 10, 100)
SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20, "100 MB": 100 << 20}
LARGE = SIZES["100 MB"]
SLOW = 10.0
SEEN = (
    *((2, "auto", "1 MB"), (2, "auto", "16 MB"), (4, "direct", "1 MB"), (4, "direct", "16 MB"), (4, "ring", "16 MB")),
    *((4, "halving-doubling", "16 MB"), (4, "tree", "16 MB"), (8, "direct", "16 MB")),
)
"""Hosts of one rank, algorithms and sizes that run both ways."""
REAL, SIMULATED, CHOSEN = "real", "simulated", "chosen"


def compare(quick: bool, environ: Mapping[str, str]) -> Iterator[Comparison]:
    """Yield four tables: real rails beside simulated ones, allreduces, what hosts send, and one slow host."""
    yield _seen(10 if quick else 30, environ)
    yield _times()
    yield _traffic()
    yield _slow_host()


def _seen(rounds: int, environ: Mapping[str, str]) -> Comparison:
    cores = os.cpu_count() or 1
    comparison = Comparison(
        "allreduce over rails, on this machine alone, from the last rank's start to the last one's end",
        "hosts x ranks, algorithm, size",
        [REAL, SIMULATED],
        [(SIMULATED, REAL)],
        notes=[
            f"{REAL}: ranks that believe that they are on hosts of their own, over loopback; {SIMULATED}: with "
            f"links of 160 Gbit/s; all that ranks compute takes longer where there are more of them than the {cores} "
            "cores."
        ],
    )
    for hosts, wanted, size in SEEN:
        nbytes = (SIZES | {"16 MB": 16 << 20})[size]
        share = max(1.0, hosts / cores)
        here = Machine(cores, 60e-6 * share, 10e-6, 20e9, 8e-6 * share, 5e9 / share, 10e9 / share)
        arguments = ["reduce", str(rounds), str(nbytes)]
        measured = real.run((1,) * hosts, arguments, {**environ, "DISTRUN_ALGORITHM": wanted})[0]
        name = choose(nbytes, hosts, wanted=wanted)
        results = {
            REAL: Summary(measured, (measured, measured), rounds),
            SIMULATED: exactly(seconds(name, hosts, nbytes, 1, here)),
        }
        comparison.add(f"{hosts} x 1, {name}, {size}", results)
    return comparison


def _times() -> Comparison:
    comparison = Comparison(
        "allreduce between hosts, by all ranks of each, simulated",
        f"link, hosts x {RANKS}, size",
        [*KINDS, CHOSEN],
        [],
        notes=[
            f"Links of each host in both directions; {CLUSTER.latency * 1e6:g} us between two, "
            f"{CLUSTER.wake * 1e6:g} us to wake a rank, {CLUSTER.system_call * 1e6:g} us for a message; a core moves "
            f"{CLUSTER.copying / 1e9:g} GB/s to or from the kernel, and adds up arrays at {CLUSTER.memory / 1e9:g} "
            "GB/s of memory. Without the negotiation. Where direct exchange or a ring has less than one element for a "
            "part, it has one.",
        ],
    )
    for gigabits in GIGABITS:
        machine = replace(CLUSTER, rate=gigabits * 1e9 / 8)
        for hosts in HOSTS:
            for size, nbytes in SIZES.items():
                chosen = choose(nbytes, hosts)
                names = [name for name in (*KINDS, chosen) if _is_quick(name, hosts, nbytes)]
                times = {name: exactly(seconds(name, hosts, nbytes, RANKS, machine)) for name in names}
                comparison.add(f"{gigabits} Gbit/s, {hosts:,}: {size}", {**times, CHOSEN: times[chosen]})
    for hosts in HOSTS:
        found = ", ".join(f"{choose(nbytes, hosts)} for {size}" for size, nbytes in SIZES.items())
        comparison.notes.append(f"{CHOSEN} for {hosts:,} hosts: {found}.")
    return comparison


def _is_quick(name: str, hosts: int, nbytes: int) -> bool:
    """Whether something is simulated in seconds: messages of many hosts that are not alike take minutes."""
    return mirror(name, hosts) is not None or name == Tree.name or hosts * nbytes < 1000 * LARGE


def _traffic() -> Comparison:
    comparison = Comparison(
        "what the busiest host sends in an allreduce of 100 MB, and the messages and partners of each of its rails",
        f"hosts x {RANKS}",
        list(KINDS),
        [],
        notes=["By the messages of the real code."],
        unit="n",
    )
    for hosts in HOSTS:
        traces = {
            name: traces_of(name, hosts, LARGE, RANKS).values() for name in KINDS if _is_quick(name, hosts, LARGE)
        }
        rows = {
            "MB": {name: max(each.nbytes for each in of) * RANKS / (1 << 20) for name, of in traces.items()},
            "messages": {name: max(each.messages for each in of) for name, of in traces.items()},
            "partners": {name: max(len(each.partners) for each in of) for name, of in traces.items()},
        }
        for row, numbers in rows.items():
            comparison.add(f"{hosts:,}: {row}", {name: exactly(number) for name, number in numbers.items()})
    return comparison


def _slow_host() -> Comparison:
    machine = replace(CLUSTER, rate=10e9 / 8)
    comparison = Comparison(
        f"allreduce of 100 MB where the link of one host has {10 / SLOW:g} Gbit/s instead of 10, simulated",
        f"hosts x {RANKS}",
        [*KINDS, CHOSEN],
        [],
        notes=["The ranks know of the slow link. A ring's slow host is the last, a tree's is a leaf."],
    )
    for hosts in HOSTS[1:3]:
        chosen = choose(LARGE, hosts)
        equal = {name: exactly(seconds(name, hosts, LARGE, RANKS, machine)) for name in KINDS}
        comparison.add(f"{hosts}: equal", {**equal, CHOSEN: equal[chosen]})
        aware = choose(LARGE, hosts, frozenset({hosts - 1}))
        slow = {name: exactly(seconds_with_slow(name, hosts, LARGE, RANKS, machine, SLOW)) for name in KINDS}
        comparison.add(f"{hosts}: one slow", {**slow, CHOSEN: slow[aware]})
        comparison.notes.append(f"{CHOSEN} for {hosts}: {chosen}, and {aware} where one is slow.")
    return comparison
