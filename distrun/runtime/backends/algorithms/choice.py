"""Which algorithm reduces an array between hosts: a function of what all ranks agree on.

Direct exchange has the fewest steps and rounds least, and stays the choice where hosts are few. Its n-1 messages per
host and step are what makes others better: each costs the processor some 10 us, and many at once overflow the buffers
of a switch. Trees and recursive doubling have 2 log2(n) messages.

Quantised arrays are not sent whole between two hosts, although that would be the same number of bytes and one rounding
fewer: each host would also compute what the other makes of its elements. A step of 25 million parameters at 1 Gbit/s
took 191 ms longer than alone in that way with int4, and 179 ms by direct exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from distrun.contract.settings import AUTO, DIRECT, HALVING_DOUBLING, QUANTISED, RING, TREE
from distrun.runtime.operations.wire import AS_THEY_ARE, Wire

WHOLE = "whole"
"""A small array is sent whole to all hosts: direct exchange in one step."""

ONE_STEP_LIMIT = 64 << 10
"""Bytes that a host receives, up to which every host is sent everything. At most what staging holds."""
ONE_STEP_LIMIT_OF_TWO = 1 << 20
"""The limit for two hosts, where sending everything costs no more bytes than sending halves twice."""
SHARED_FROM = 64 << 10
"""Bytes of such an array from which all rails of a host move it, each its share, and not rail 0 alone."""
FEW_HOSTS = 8
"""Hosts up to which direct exchange is best for all sizes."""
SHORT = 64 << 10
"""Bytes up to which the number of steps is what an array takes, whatever travels in each."""
MEASURED_FROM = 1 << 20
"""Bytes of a reduction from which unequal links matter: the first one of so many measures them."""
SLOW = 3.0
"""A link is slow if something takes so many times as long as over most links: see `tree`."""
NOISE = 0.005
"""Seconds by which it must take longer: less is how processes are scheduled."""


class LinkFacts(NamedTuple):
    """The facts about the links between hosts, as all ranks of a rail know them."""

    slow: frozenset[int] = frozenset()
    """The hosts whose links with all others are slow."""


EQUAL = LinkFacts()
"""All links are about as fast, or nobody knows."""


def choose(nbytes: int, hosts: int, links: LinkFacts = EQUAL, wire: Wire = AS_THEY_ARE, wanted: str = AUTO) -> str:
    """Return the name of the algorithm for an array: one of `settings.ALGORITHMS`, or `WHOLE`.

    Args:
        nbytes: its size.
        hosts: their number, at least 2.
        links: what is known of the links.
        wire: how elements travel.
        wanted: the algorithm that the user has asked for, or `AUTO`.
    """
    is_quantised = wire.dtype in QUANTISED  # rounded exactly once each way, which only direct exchange does
    if wanted in (AUTO, DIRECT) or is_quantised:
        is_small = nbytes * (hosts - 1) <= ONE_STEP_LIMIT
        if is_small or (hosts == 2 and nbytes <= ONE_STEP_LIMIT_OF_TWO):
            return WHOLE
    if is_quantised:
        return DIRECT
    if wanted != AUTO:
        return wanted
    if nbytes >= MEASURED_FROM and 0 < len(links.slow) <= hosts // 2:
        return TREE
    if hosts <= FEW_HOSTS:
        return DIRECT
    if nbytes <= SHORT:
        return TREE
    is_power_of_two = hosts & (hosts - 1) == 0  # else some hosts carry three arrays
    return RING if not is_power_of_two and nbytes >= SHORT * hosts else HALVING_DOUBLING


def is_worth_sharing(nbytes: int) -> bool:
    """Whether all rails move an array of so many bytes that is sent whole, and not rail 0 alone."""
    return nbytes >= SHARED_FROM


def choose_broadcast(nbytes: int, hosts: int, links: LinkFacts = EQUAL) -> str:
    """Return the name of the algorithm that copies an array to all hosts: `DIRECT` (scatter and allgather) or
    `TREE`."""
    has_slow = nbytes >= MEASURED_FROM and 0 < len(links.slow) <= hosts // 2
    return TREE if hosts > FEW_HOSTS or has_slow else DIRECT


def arranged(hosts: int, links: LinkFacts) -> list[int]:
    """Return the hosts in the order in which algorithms arrange them: those with slow links last, which are then leaves
    of a tree, and beside each other in a ring."""
    return sorted(range(hosts), key=lambda host: host in links.slow)


def facts_of(seconds: Sequence[float]) -> LinkFacts:
    """Return what follows from the times that each host took to exchange the same array with another one."""
    usual = median(seconds)
    return LinkFacts(
        frozenset(host for host, taken in enumerate(seconds) if taken > SLOW * usual and taken - usual > NOISE)
    )
