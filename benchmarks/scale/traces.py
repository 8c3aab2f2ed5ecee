"""Traces: the messages of the real algorithms between hosts.

What an algorithm sends and waits for depends on nothing but the number of hosts and the size of the array. So each host
runs the real code by itself, with links that note what is asked of them, and arrays without memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from distrun.runtime.backends.algorithms.base import Algorithm, RailShare, Scratch
from distrun.runtime.backends.algorithms.choice import EQUAL, WHOLE, arranged
from distrun.runtime.backends.algorithms.direct import Direct
from distrun.runtime.backends.algorithms.halving_doubling import HalvingDoubling
from distrun.runtime.backends.algorithms.ring import Ring
from distrun.runtime.backends.algorithms.tree import Tree
from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.wire_format import AsTheyAre
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links, Ticket

KINDS: dict[str, type[Algorithm]] = {kind.name: kind for kind in (Direct, Ring, HalvingDoubling, Tree)}
"""The algorithms by their names."""
FLOAT = np.dtype(np.float32)
"""The type of all arrays."""
_SCRATCH = Scratch()

Step = tuple[str, Any, float]
"""SEND, the host and the bytes; WAIT, the messages (host, number, bytes) and 0; or COMPUTE, None and the bytes."""
SEND, WAIT, COMPUTE = "send", "wait", "compute"


@dataclass(frozen=True)
class Trace:
    """All that one host does in an allreduce, in order."""

    steps: Sequence[Step]

    @property
    def nbytes(self) -> int:
        """The bytes that it sends."""
        return sum(int(amount) for kind, _, amount in self.steps if kind == SEND)

    @property
    def messages(self) -> int:
        """The number of messages that it sends."""
        return sum(kind == SEND for kind, _, _ in self.steps)

    @property
    def partners(self) -> set[int]:
        """The hosts that it sends to."""
        return {host for kind, host, _ in self.steps if kind == SEND}


class _Message:
    """A message that is received."""

    left = 0

    def __init__(self, host: int, number: int, nbytes: int) -> None:
        self.key = host, number, nbytes


class _Recorder(Links):
    """The links of a host, which note what is asked of them."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._received: Counter[int] = Counter()

    def send(self, host: int, array: Flat) -> Ticket:
        if array.nbytes:
            self.steps.append((SEND, host, array.nbytes))
        return SimpleNamespace(left=0)

    def receive(self, host: int, into: Flat) -> Ticket:
        if not into.nbytes:
            return SimpleNamespace(left=0)
        self._received[host] += 1
        return _Message(host, self._received[host], into.nbytes)

    def wait(self, tickets: Sequence[Ticket], what: str, left: int = 0) -> None:
        awaited = [ticket.key for ticket in tickets if isinstance(ticket, _Message)]
        if awaited:
            self.steps.append((WAIT, awaited, 0))

    def flush(self, what: str) -> None:
        """Nothing is waited for: sent is sent."""

    def compute(self, nbytes: int) -> None:
        """Note that so many bytes are read and written."""
        self.steps.append((COMPUTE, None, nbytes))

    def combine(self, sources: Sequence[Flat], targets: Sequence[Flat]) -> None:
        """Note that arrays are added up."""
        self.compute((len(sources) + len(targets)) * targets[0].nbytes)


class _Share(RailShare):
    """A share of arrays without memory, of so many ranks of a host."""

    def __init__(self, recorder: _Recorder, elements: int, ranks: int) -> None:
        array = np.broadcast_to(FLOAT.type(0), elements)
        stage: Any = SimpleNamespace(between=recorder, partial=recorder, within=None)
        super().__init__([array], [array], 0, stage, AsTheyAre(FLOAT))
        self._recorder = recorder
        self._ranks = ranks

    def ours(self, part: slice) -> Flat:
        if self._ranks > 1:
            self._recorder.compute((self._ranks + 1) * self.target[part].nbytes)
        return self.target[part]

    def settle(self, raw: Flat, part: slice) -> None:
        if self._ranks > 1:
            self._recorder.compute(2 * (self._ranks - 1) * self.target[part].nbytes)


@cache
def _layout(hosts: int, own: int) -> HostLayout:
    return HostLayout(tuple((host,) for host in range(hosts)), own)


@cache
def trace(name: str, hosts: int, elements: int, ranks: int, own: int, slow: frozenset[int] = EQUAL) -> Trace:
    """Return what a host does to reduce its rail's share of an array of float32.

    Args:
        name: the algorithm, or `WHOLE`.
        hosts: their number.
        elements: those of the share.
        ranks: those of a host.
        own: the number of this host.
        slow: the hosts whose links are slow, as far as the hosts know.
    """
    recorder = _Recorder()
    share = _Share(recorder, elements, ranks)
    kind = Direct if name == WHOLE else KINDS[name]
    algorithm = kind(recorder, _layout(hosts, own), arranged(hosts, slow), _SCRATCH)
    if name == WHOLE:
        assert isinstance(algorithm, Direct)
        algorithm.reduce_whole(share, "allreduce")
    else:
        algorithm.reduce(share, "allreduce")
    return Trace(recorder.steps)
