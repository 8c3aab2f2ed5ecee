"""The stages of a reduction over several hosts: within each host, then between the hosts, at once or step by step."""

from __future__ import annotations

import functools
from typing import NamedTuple

from distrun.contract.settings import HALF_PRECISION
from distrun.runtime.operations.reduction import Average, Reduction, Sum


class Stages(NamedTuple):
    """How the arrays of all ranks of all hosts are combined.

    Between two stages, elements have their type in memory or on the wire, not the accumulator's.
    """

    within: Reduction | None
    """Combines the arrays of a host's ranks. None where a host has only one array, which is sent as it is."""
    between: Reduction
    """Combines the hosts' results, or the partial results of several hosts, into the final result."""
    partial: Reduction
    """Combines the results of some hosts, where the hosts are combined step by step."""


@functools.lru_cache(maxsize=1024)
def stages(whole: Reduction, hosts: int, most: int, is_stepwise: bool = False) -> Stages:
    """Return the stages of a reduction.

    An average of half-precision numbers is divided in both stages, so that no intermediate sum overflows. Each host's
    result is divided by the number of ranks of the largest host. Where sums of several hosts are sent, it is divided by
    a power of two, which needs no rounding, of at least the number of all ranks. Other averages are divided at the end.

    Args:
        whole: the reduction over all ranks.
        hosts: the number of hosts.
        most: the number of ranks of the largest host.
        is_stepwise: whether the hosts' results are combined one after the other instead of all at once.
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
