"""The choice of the algorithm that reduces an array between hosts: a function of what all ranks agree on.

Direct exchange has the fewest steps and rounds least, and is the choice for a few hosts. With many hosts, its n-1
messages per host and step make others better: each message costs about 10 us of processor time, and many at once
overflow the buffers of a switch. Trees and recursive doubling have 2 log2(n) messages.

Quantised arrays are not sent whole between two hosts, although that would be the same number of bytes and one rounding
fewer: each host would also compute what the other makes of its elements. A step of 25 million parameters at 1 Gbit/s
took 191 ms longer than alone in that way with int4, and 179 ms by direct exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from distrun.contract.settings import AUTO, DIRECT, HALVING_DOUBLING, QUANTISED, RING, TREE
from distrun.runtime.operations.wire import AS_THEY_ARE, Wire

WHOLE = "whole"
"""Direct exchange in one step: a small array is sent whole to all hosts."""

ONE_STEP_LIMIT = 64 << 10
"""The most bytes that a host receives if every host is sent everything. It must not exceed a staging buffer."""
ONE_STEP_LIMIT_OF_TWO = 1 << 20
"""The limit for two hosts, where sending everything costs no more bytes than sending halves twice."""
SHARED_FROM = 64 << 10
"""All rails of a host, each with its share, move an array of at least this many bytes that is sent whole. Else rail 0
moves it."""
FEW_HOSTS = 8
"""The largest number of hosts for which direct exchange is best for all sizes."""
SHORT = 64 << 10
"""Up to this many bytes, the time for an array depends on the number of steps only, not on the bytes in each."""
MEASURED_FROM = 1 << 20
"""From this many bytes on, unequal links matter to a reduction. The first such reduction measures the links."""
SLOW = 3.0
"""A link is slow if a transfer takes this many times as long as over the median link: see `tree`."""
NOISE = 0.005
"""Seconds by which it must also take longer. Smaller differences come from the scheduling of processes."""


EQUAL: frozenset[int] = frozenset()
"""No host is slow: all links are about equally fast, or have not been measured."""


def choose(nbytes: int, hosts: int, slow: frozenset[int] = EQUAL, wire: Wire = AS_THEY_ARE, wanted: str = AUTO) -> str:
    """Return the name of the algorithm for an array: one of `settings.ALGORITHMS`, or `WHOLE`.

    Args:
        nbytes: the size of the array.
        hosts: the number of hosts, at least 2.
        slow: the hosts whose links with all others are slow, the same on all ranks of a rail.
        wire: the encoding of elements on the wire.
        wanted: the algorithm that the user asks for, or `AUTO`.
    """
    is_quantised = wire.dtype in QUANTISED  # must be rounded exactly once each way: only direct exchange does
    if wanted in (AUTO, DIRECT) or is_quantised:
        is_small = nbytes * (hosts - 1) <= ONE_STEP_LIMIT
        if is_small or (hosts == 2 and nbytes <= ONE_STEP_LIMIT_OF_TWO):
            return WHOLE
    if is_quantised:
        return DIRECT
    if wanted != AUTO:
        return wanted
    if nbytes >= MEASURED_FROM and 0 < len(slow) <= hosts // 2:
        return TREE
    if hosts <= FEW_HOSTS:
        return DIRECT
    if nbytes <= SHORT:
        return TREE
    is_power_of_two = hosts & (hosts - 1) == 0  # otherwise some hosts carry three arrays
    return RING if not is_power_of_two and nbytes >= SHORT * hosts else HALVING_DOUBLING


def choose_broadcast(nbytes: int, hosts: int, slow: frozenset[int] = EQUAL) -> str:
    """Return the name of the algorithm that broadcasts an array: `DIRECT` (scatter and allgather) or `TREE`."""
    has_slow = nbytes >= MEASURED_FROM and 0 < len(slow) <= hosts // 2
    return TREE if hosts > FEW_HOSTS or has_slow else DIRECT


def arranged(hosts: int, slow: frozenset[int]) -> list[int]:
    """Return the hosts in the order that algorithms arrange them in.

    Hosts with slow links are last, so they are leaves of a tree, and beside each other in a ring.
    """
    return sorted(range(hosts), key=lambda host: host in slow)


def slow_hosts(seconds: Sequence[float]) -> frozenset[int]:
    """Return the hosts with slow links, given the time that each host took to exchange the same array."""
    usual = median(seconds)
    return frozenset(host for host, taken in enumerate(seconds) if taken > SLOW * usual and taken - usual > NOISE)
