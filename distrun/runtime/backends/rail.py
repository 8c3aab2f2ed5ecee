"""A rail: one rank of each host, which together move their share of the data between the hosts.

A rail knows which elements are its own, chooses an algorithm by `algorithms.choice`, and connects the links that the
algorithm needs. The `algorithms` reduce and copy the arrays. Sends are posted and never waited for one by one: while a
rank combines one piece of an array, its other pieces are on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from distrun.contract.settings import AUTO
from distrun.runtime.backends.algorithms.base import Algorithm, Arena, RailShare, Scratch
from distrun.runtime.backends.algorithms.choice import (
    EQUAL,
    FEW_HOSTS,
    MEASURED_FROM,
    arranged,
    choose,
    choose_broadcast,
)
from distrun.runtime.backends.algorithms.direct import Direct
from distrun.runtime.backends.algorithms.halving_doubling import HalvingDoubling
from distrun.runtime.backends.algorithms.measuring import combine_small, measure, probed
from distrun.runtime.backends.algorithms.ring import Ring
from distrun.runtime.backends.algorithms.tree import Tree, place_in_tree
from distrun.runtime.backends.base import Flat
from distrun.runtime.backends.wire_format import wire_format
from distrun.runtime.operations.feedback import Feedback
from distrun.runtime.operations.reduction import Reduction, Sum
from distrun.runtime.operations.stages import Stages, stages
from distrun.runtime.transport.host_layout import HostLayout
from distrun.runtime.transport.links import Links

Transfer = tuple[int, Iterable[Flat], Iterable[Flat]]
"""A host, the arrays to send to it, and the arrays to receive from it."""

_KINDS: dict[str, type[Algorithm]] = {kind.name: kind for kind in (Direct, Ring, HalvingDoubling, Tree)}
_PROBES = "probes"


class Rail:
    """One rank's side of its rail.

    All ranks of the rail call its methods in the same order. Ranks without a rail (`HostLayout.has_rail`) do not.
    """

    def __init__(self, links: Links, hosts: HostLayout, wanted: str = AUTO) -> None:
        """`wanted` is the algorithm for reductions, one of `ALGORITHMS`."""
        self._links = links
        self._hosts = hosts
        self._wanted = wanted
        self._slow: frozenset[int] | None = None
        """The hosts with slow links. None until the links have been measured."""
        self._algorithms: dict[str, Algorithm] = {}
        self._connected: set[str] = set()
        """The purposes whose links are connected: names of algorithms, and `_PROBES`."""
        self._scratch = Scratch()
        self._arena = Arena()
        self._place = object()
        """Identifies this rail to `Feedback`, which drops residuals of another rail."""

    # The rail's share of an array ------------------------------------------------------------------------------------

    def share(self, count: int) -> tuple[int, int]:
        """Return the start and the stop of this rail's share of `count` elements."""
        rail, rails = self._hosts.position, self._hosts.rails
        return count * rail // rails, count * (rail + 1) // rails

    def shares(self, ranks: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield this rail's share of the elements of `ranks`, taken as one array, as parts of each rank's elements.

        Args:
            ranks: the ranks whose elements are divided among the rails, in this order.
            counts: the number of elements of each rank of the job.

        Yields:
            A rank, and where the share begins and ends in that rank's elements.
        """
        first, last = self.share(sum(counts[rank] for rank in ranks))
        at = 0
        for rank in ranks:
            start, stop = max(first, at), min(last, at + counts[rank])
            if start < stop:
                yield rank, start - at, stop - at
            at += counts[rank]

    def share_of(self, arrays: Sequence[Flat]) -> Iterator[Flat]:
        """Yield this rail's share of several arrays, taken as one."""
        for index, start, stop in self.shares(range(len(arrays)), [array.size for array in arrays]):
            yield arrays[index][start:stop]

    # Links and algorithms --------------------------------------------------------------------------------------------

    def links(self, what: str) -> Links:
        """Return the links, connected with all hosts."""
        self._algorithm(Direct.name, what)
        return self._links

    def _algorithm(self, name: str, what: str) -> Algorithm:
        """Return the algorithm of this `name`, with its links connected."""
        algorithm = self._algorithms.get(name)
        if algorithm is None:
            order = arranged(self._hosts.count, self._slow or EQUAL)
            algorithm = self._algorithms[name] = _KINDS[name](self._links, self._hosts, order, self._scratch)
            self._connect(name, algorithm.partners, what)
        return algorithm

    def _connect(self, purpose: str, hosts: Sequence[int], what: str) -> None:
        """Connect with `hosts`. All ranks of the rail call this for the same `purpose`, each with its own hosts."""
        if purpose in self._connected or self._links.are_complete:
            return
        self._connected.add(purpose)

        def tell(number: int) -> list[int]:
            numbers = np.zeros(self._hosts.count, np.int64)
            numbers[self._hosts.own] = number
            combine_small(self._first_tree(), numbers, Sum, self._hosts, what)
            return [int(each) for each in numbers]

        self._links.connect(hosts, tell)

    def _first_tree(self) -> Tree:
        """Return the tree whose links are connected from the start: see `first_partners`."""
        return Tree(self._links, self._hosts, arranged(self._hosts.count, EQUAL), self._scratch)

    # Copies ----------------------------------------------------------------------------------------------------------

    def swap(self, transfers: Iterable[Transfer], what: str) -> None:
        """Send and receive arrays, and wait for all of them."""
        links = self.links(what)
        tickets = []
        for host, sent, received in transfers:
            for array in sent:
                links.send(host, array)
            tickets += [links.receive(host, array) for array in received]
        links.wait(tickets, what)
        links.flush(what)

    def broadcast(self, array: Flat, root: int, nbytes: int, what: str) -> None:
        """Copy the array of host `root` to all other hosts. `array` is this rail's share of `nbytes` bytes."""
        name = choose_broadcast(nbytes, self._hosts.count, self._slow or EQUAL)
        algorithm = self._algorithm(name, what)
        assert isinstance(algorithm, (Direct, Tree))
        algorithm.broadcast(array, root, what)
        self._links.flush(what)

    def barrier(self, what: str) -> None:
        """Return when all ranks of the rail have called this."""
        if self._hosts.count > FEW_HOSTS:
            combine_small(self._algorithm(Tree.name, what), np.zeros(1), Sum, self._hosts, what)
            self._links.flush(what)
        else:
            tokens = np.zeros((self._hosts.count, 1), np.uint8)
            own = tokens[self._hosts.own]
            self.swap(((host, [own], [tokens[host]]) for host in self._hosts.others), what)

    # Reductions ------------------------------------------------------------------------------------------------------

    def reduce_whole(
        self,
        sources: Sequence[Flat],
        targets: Sequence[Flat],
        how: Reduction,
        what: str,
        first: int,
        feedback: Feedback | None,
    ) -> None:
        """Combine the `sources` of all ranks of all hosts into all `targets`, in one step: everything to every host.

        `sources` and `targets` list this rail's elements of the flat arrays of this host's ranks. They begin at the
        element `first` of the operation.
        """
        algorithm = self._algorithm(Direct.name, what)
        assert isinstance(algorithm, Direct)
        algorithm.reduce_whole(self._share_for(algorithm, sources, targets, how, first, feedback), what)

    def reduce(
        self,
        sources: Sequence[Flat],
        targets: Sequence[Flat],
        how: Reduction,
        nbytes: int,
        what: str,
        first: int = 0,
        feedback: Feedback | None = None,
    ) -> None:
        """Combine the `sources` of all ranks of all hosts into all `targets`.

        `sources` and `targets` list this rail's share of the flat arrays of this host's ranks. The share begins at the
        element `first` of an operation of `nbytes` bytes. A source may be its rank's target.
        """
        hosts = self._hosts.count
        if self._slow is None and nbytes >= MEASURED_FROM and self._wanted == AUTO and hosts > 2:
            self._connect(_PROBES, probed(self._hosts), what)
            self._slow = measure(self._links, self._hosts, self._first_tree(), what)
            if self._slow:
                self._algorithms.clear()  # they arrange the hosts in another order
                self._connected &= {Direct.name, _PROBES}
        name = choose(nbytes, hosts, self._slow or EQUAL, how.wire, self._wanted)
        algorithm = self._algorithm(name, what)
        algorithm.reduce(self._share_for(algorithm, sources, targets, how, first, feedback), what)
        self._links.flush(what)

    def stages(self, how: Reduction, is_stepwise: bool = False) -> Stages:
        """Return the stages in which `how` combines the arrays of all ranks."""
        return stages(how, self._hosts.count, self._hosts.most, is_stepwise)

    def _share_for(
        self,
        algorithm: Algorithm,
        sources: Sequence[Flat],
        targets: Sequence[Flat],
        how: Reduction,
        first: int,
        feedback: Feedback | None,
    ) -> RailShare:
        wire = wire_format(how.wire, sources[0].dtype, feedback, self._arena.begin(sources[0].nbytes))
        stages_ = self.stages(how, algorithm.is_stepwise)
        if feedback is not None:
            feedback.begin(self._place, first, sources[0].size, _units(stages_))
        return RailShare(sources, targets, self._hosts.position, stages_, wire, first)


def _units(how: Stages) -> tuple[float, float]:
    """Return the `units` of a reduction's residuals: see `Feedback.begin`."""
    share = 1.0 if how.within is None else 1.0 / how.within.prescale
    return share, share * how.between.divisor / (how.between.prescale * how.between.postscale)


def first_partners(hosts: HostLayout) -> list[int]:
    """Return the hosts that a rank is linked with from the start. It learns over these links how to make others."""
    if not hosts.has_rail:
        return []
    return place_in_tree(tuple(arranged(hosts.count, EQUAL)), hosts.own, 0).partners
