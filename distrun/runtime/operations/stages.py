"""The stages of a reduction over several hosts: within each host, then between the hosts, at once or step by step."""

from __future__ import annotations

import functools
from typing import NamedTuple

from distrun.contract.settings import HALF_PRECISION
from distrun.runtime.operations.reduction import Average, Reduction, Sum


class Stages(NamedTuple):
    """How the arrays of all ranks of all hosts are combined.

    Between two stages, elements are as wide as in memory or on the wire.
    """

    within: Reduction | None
    """Combines the arrays of a host's ranks; None where a host's only array goes between the hosts as it is."""
    between: Reduction
    """Combines the hosts' results, or what is left of them, into the final one."""
    partial: Reduction
    """Combines some of the hosts' results, where that is done step by step."""


@functools.lru_cache(maxsize=1024)
def stages(whole: Reduction, hosts: int, most: int, is_stepwise: bool = False) -> Stages:
    """Return the stages of a reduction.

    An average of half-precision numbers is formed in both stages, so that a sum too large for them never occurs. The
    results of hosts are divided by the number of ranks of the largest host; where sums of some hosts travel, by a
    power of two, which rounds nothing, of at least the number of ranks. Other averages are divided at the end.

    Args:
        whole: the reduction over all ranks.
        hosts: their number.
        most: the number of ranks of the largest host.
        is_stepwise: whether the hosts' results are combined one after the other rather than at once.
    """
    element, op, weight, divisor = whole.element, whole.op, 1.0, whole.divisor
    within = Sum if op is Average else op
    if op is Average and (element.is_converted or whole.wire.dtype in HALF_PRECISION):
        weight = 1 << (most * hosts - 1).bit_length() if is_stepwise else most
        divisor = whole.divisor / weight
    first = Reduction(element, within, whole.size, whole.prescale, 1 / weight)
    last = Reduction(element, op, hosts, 1.0, whole.postscale, divisor=divisor, wire=whole.wire)
    if most == 1 and not is_stepwise:
        return Stages(None, whole, whole)
    is_plain = most == 1 and whole.prescale == weight == 1.0
    return Stages(None if is_plain else first, last, Reduction(element, within, hosts, 1.0, 1.0, wire=whole.wire))
