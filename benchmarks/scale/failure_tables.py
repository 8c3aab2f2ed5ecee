"""Tables of a host's failure: when all ranks know of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.scale import real
from benchmarks.scale.failure import failure, keepalive_seconds
from benchmarks.scale.machine import CLUSTER
from benchmarks.support.comparison import Comparison
from benchmarks.support.measuring import exactly, summary
from distrun.host.connections.tcp_options import DEAD_HOST_TIMEOUT

HOSTS, RANKS = (2, 8, 64, 1250), 8
SEEN = ((2, 1, 0), (2, 2, 0), (4, 2, 0), (4, 2, 2))
"""Hosts, ranks of each, and fan-outs (0: no tree) that run both ways."""
RUNS = 3
REAL, SIMULATED = "real", "simulated"
FIRST, LAST, SILENT = "ends: first rank", "ends: last rank", "silent: last rank"


def compare(environ: Mapping[str, str]) -> Iterator[Comparison]:
    """Yield two tables: real ranks beside simulated ones, and many simulated ones."""
    yield _seen(environ)
    yield _unseen()


def _seen(environ: Mapping[str, str]) -> Comparison:
    comparison = Comparison(
        "from the death of all ranks of a host until the last of the others knows, on this machine alone",
        "hosts x ranks, fan-out",
        [REAL, SIMULATED],
        [],
        notes=[
            f"{REAL}: ranks of the last host kill themselves while the others wait in an allreduce, and its error is "
            f"raised; median of {RUNS}. Until the kernel has ended a process and a rank has failed takes as long as "
            "with two ranks, and longer where ranks share cores. Neither is simulated: the way of the news alone is."
        ],
    )
    for hosts, ranks, fan_out in SEEN:
        fan_outs = {**environ, "DISTRUN_FAN_OUT": str(fan_out)}
        seconds = []
        for _ in range(RUNS):
            heard = real.run((ranks,) * hosts, ["fail", str((hosts - 1) * ranks)], fan_outs, may_fail=True)
            seconds.append(max(each for each in heard if each is not None))
        simulated = failure(hosts, ranks, hosts - 1, CLUSTER, False, fan_out).last
        comparison.add(f"{hosts} x {ranks}, {fan_out}", {REAL: summary(seconds), SIMULATED: exactly(simulated)})
    return comparison


def _unseen() -> Comparison:
    (earliest, _), (least, most) = keepalive_seconds(may_be_unread=True), keepalive_seconds()
    comparison = Comparison(
        "from the failure of a host until ranks of others know, simulated",
        f"hosts x {RANKS}, which fails",
        [FIRST, LAST, SILENT],
        [],
        notes=[
            "ends: its connections end; silent: it vanishes with all its links, which the keepalives of the alarms "
            f"tell after {least:g} to {most:g} s, of which the longest is taken; where a rank waits for something, and "
            f"nothing was sent, after {earliest:g} s at the earliest (--keepalive {DEAD_HOST_TIMEOUT:g}, by the "
            "options of the sockets and Linux's rules). The way of the news is that of the real Network and control "
            "tree; what ranks compute is left out."
        ],
    )
    for hosts in HOSTS:
        for victim in sorted({1, hosts - 1}):
            news = failure(hosts, RANKS, victim, CLUSTER, is_silent=False)
            silent = failure(hosts, RANKS, victim, CLUSTER, is_silent=True)
            title = f"{hosts:,}, host {victim:,}"
            times = {FIRST: news.first, LAST: news.last, SILENT: silent.last}
            comparison.add(title, {name: exactly(seconds) for name, seconds in times.items()})
            comparison.notes.append(
                f"{title}: heard directly by {news.directly} {'rank' if news.directly == 1 else 'ranks'} over "
                f"connections for messages, and by {news.by_data} over those for arrays that are made at the start."
            )
    return comparison
