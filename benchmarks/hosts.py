"""Hosts: what distrun does between two hosts, over wires of different speeds, beside its neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import hosts_launch
import namespaces
import processes
import ranks
import remote_ranks
from comparison import Comparison
from hosts_allreduce import BOUND, ONE_WAY, SIZES
from measuring import Summary
from namespaces import ConnectionSet

HERE = Path(__file__).resolve().parent
WIRES = (
    ConnectionSet("veth"),
    ConnectionSet("10 Gbit/s", 10e9),
    ConnectionSet("1 Gbit/s", 1e9),
    ConnectionSet("10 Gbit/s, MTU 9000", 10e9, 9000),
    ConnectionSet("1 Gbit/s, MTU 9000", 1e9, 9000),
)
DEADLINE = 300.0


def compare(quick: bool, environ: Mapping[str, str], work: Path) -> Iterator[Comparison]:
    """Traffic, times over all wires, and launch, each when it is there.

    Raises:
        processes.ProcessError: there can be no hosts here, or a program failed.
    """
    if (reason := namespaces.missing()) is not None:
        raise processes.ProcessError(reason)
    yield _traffic(environ, work)
    yield _times(quick, environ, work)
    yield _launch(quick, environ, work)


def _times(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    whole: Comparison | None = None
    for number, wire in enumerate(WIRES):
        found = _on_ranks("hosts_allreduce.py", wire, 1, quick, environ, work / f"wire-{number}")
        rows, found.rows = found.rows, {}
        whole = whole or found
        for size, results in rows.items():
            whole.add(f"{wire.label}: {size}", {**results, **_bound(wire, size)})
        whole.notes.append(f"{wire.label}: {_speed(rows)}.")
    assert whole is not None
    return whole


def _bound(wire: ConnectionSet, size: str) -> dict[str, Summary]:
    """With two ranks, each sends as many bytes as there are, and each direction has the whole rate."""
    if wire.rate is None:
        return {}
    seconds = SIZES[size][0] * 8 / wire.rate
    return {BOUND: Summary(seconds, (seconds, seconds), 1)}


def _speed(rows: Mapping[str, Mapping[str, Summary]]) -> str:
    """How fast the wire is in truth."""
    size = list(rows)[-1]
    rate = SIZES[size][0] * 8 / rows[size][ONE_WAY].median
    return f"a plain stream of {size} one way passes {rate / 1e9:.3g} Gbit/s"


def _traffic(environ: Mapping[str, str], work: Path) -> Comparison:
    one, two = (_on_ranks("hosts_traffic.py", WIRES[0], count, False, environ, work / f"{count}") for count in (1, 2))
    for task, results in two.rows.items():
        one.add(task, results)
    return one


def _launch(quick: bool, environ: Mapping[str, str], work: Path) -> Comparison:
    with namespaces.hosts(work / "launch", WIRES[0]) as hosts:
        return hosts_launch.compare(hosts, quick, environ)


def _on_ranks(
    program: str, wire: ConnectionSet, per_host: int, quick: bool, environ: Mapping[str, str], work: Path
) -> Comparison:
    """Run a program on hosts made for it."""
    with namespaces.hosts(work, wire) as hosts:
        launcher, theirs = remote_ranks.launcher(hosts, per_host), remote_ranks.environ(hosts, environ)
        return ranks.launch(launcher, HERE / program, quick, theirs, work, DEADLINE)
