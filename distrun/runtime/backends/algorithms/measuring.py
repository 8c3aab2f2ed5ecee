"""Measuring the links between hosts, once, before the first large reduction.

Each host sends an array to the next host, then to the second next, then to the third next, all hosts at the same time,
and measures the time until it has received the one that is sent to it. A small reduction distributes the times, so all
hosts draw the same conclusion. The best time of a host in each direction counts, so a slow host at the other end or a
process that was not scheduled for a moment does not make a link slow.

The speeds that interfaces report are not used: virtual interfaces report anything.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from distrun.runtime.backends.algorithms.base import Algorithm, RailShare
from distrun.runtime.backends.algorithms.choice import slow_hosts
from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.wire_format import AsTheyAre
from distrun.runtime.operations.reduction import Max, ReduceOp, reduction
from distrun.runtime.operations.stages import stages
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links

PROBE = 512 << 10
"""Bytes of the array that is sent."""
_PARTNERS = 3
_REPEATS = 2
_LONG = 0.5  # seconds: a longer time does not come from scheduling, so the measurement is not repeated


def probed(hosts: HostLayout) -> list[int]:
    """Return the hosts that this one sends to or receives from during the measurement."""
    return list(dict.fromkeys((hosts.own + sign * step) % hosts.count for step in _steps(hosts) for sign in (1, -1)))


def measure(links: Links, hosts: HostLayout, algorithm: Algorithm, what: str) -> frozenset[int]:
    """Return the hosts whose links are slow. All ranks of a rail call it together.

    Args:
        links: the links with the `probed` hosts.
        hosts: the ranks of each host.
        algorithm: distributes the times.
        what: names the operation in error messages.
    """
    best = _times(links, hosts, algorithm, what)
    for _ in range(_REPEATS):
        if best.max() > _LONG:
            break
        best = np.minimum(best, _times(links, hosts, algorithm, what))
    steps = _steps(hosts)
    received = [min(best[host]) for host in range(hosts.count)]
    sent = [
        min(best[(host + step) % hosts.count, number] for number, step in enumerate(steps))
        for host in range(hosts.count)
    ]
    return slow_hosts([float(max(pair)) for pair in zip(sent, received, strict=True)])


def _times(links: Links, hosts: HostLayout, algorithm: Algorithm, what: str) -> NDArray[np.float64]:
    """Return the seconds that each host waited for the array from the previous host, the second previous, and so on."""
    taken = np.zeros((hosts.count, len(_steps(hosts))))
    sent, received = np.zeros(PROBE, np.uint8), np.empty(PROBE, np.uint8)
    for number, step in enumerate(_steps(hosts)):
        combine_small(algorithm, np.zeros(1), Max, hosts, what)  # a barrier: the last array has arrived everywhere
        began = time.perf_counter()
        links.send((hosts.own + step) % hosts.count, sent)
        links.wait([links.receive((hosts.own - step) % hosts.count, received)], what)
        taken[hosts.own, number] = time.perf_counter() - began
        links.flush(what)
    combine_small(algorithm, taken.reshape(-1), Max, hosts, what)
    return taken


def combine_small(algorithm: Algorithm, array: Flat, op: ReduceOp, hosts: HostLayout, what: str) -> None:
    """Combine the arrays of the ranks of a rail in place, without the other ranks of their hosts."""
    whole = reduction(array.dtype.name, op, hosts.count, 1.0, 1.0)
    how = stages(whole, hosts.count, 1, algorithm.is_stepwise)
    algorithm.reduce(RailShare([array], [array], 0, how, AsTheyAre(array.dtype)), what)


def _steps(hosts: HostLayout) -> range:
    return range(1, min(_PARTNERS, hosts.count - 1) + 1)
